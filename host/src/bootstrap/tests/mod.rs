//! The bootstrap over real sockets, with ranks as threads of one process.

mod collectives;
