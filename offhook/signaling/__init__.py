"""WebRTC: the peer connection, SmallWebRTC signalling and the RTVI data channel."""
