"""WebRTC signalling: SmallWebRTC offers, the peer, RTVI on the data channel."""
