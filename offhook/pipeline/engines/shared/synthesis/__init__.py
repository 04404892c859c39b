"""What voice engines share: replies, their streams and their schedule."""
