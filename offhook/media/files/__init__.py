"""Sound of files, which strangers send: decoded by FFmpeg in processes of their own."""
