//! Layer: shared / fifo.
//! Takes: control words in memory that both sides map (`abi`), accessed through `sync`.
//! Gives: credit arithmetic and the FIFOs built on it: steps between two ranks, buffers that these hand to and fro, orders from a
//! user's thread to a proxy.
//! Never: payload formats (that is `proto`); blocking: every method returns at once.

mod answer;
mod credit;
mod step;
mod order;
mod ping_pong;

pub use credit::{STEPS, has_credit};
pub use order::{OrderConsumer, OrderFifo, OrderProducer};
pub use ping_pong::{BUFFERS, OUTBOX_BUFFERS, PingPong, Place};
pub use step::{
    ConnWords, ConsumerCursor, NextLine, ProducerCursor, StepConsumer, StepProducer, split, split_over,
};
