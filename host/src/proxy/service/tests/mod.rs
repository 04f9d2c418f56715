//! The service: its messages, its state machine under any interleaving, and both over real sockets.

mod messages;
mod interleavings;
mod sockets;
