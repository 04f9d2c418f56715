//! The state machine without sockets.
