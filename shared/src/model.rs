//! A kit for models under loom, which tries every interleaving and every value that the memory model lets a load return: for the
//! FIFOs' own tests, and for schedules that use them. Only with `--cfg loom`.

use crate::abi::{ConnControl, SlotHeader};
use crate::fifo::{STEPS, StepConsumer, StepProducer};
use crate::sync::{SharedCell, Sys, Word, cpu_relax};

extern crate std;
use std::boxed::Box;

/// Lends `value` to threads that `body` starts and joins, and frees it: loom has no scoped threads, and a model runs
/// too often to leak.
pub fn with_shared<T: 'static>(value: T, body: impl FnOnce(&'static T)) {
    let place = Box::into_raw(Box::new(value));
    // SAFETY: lives until the end of this function, and `body` joins every thread that it gave the reference to.
    body(unsafe { &*place });
    // SAFETY: from `into_raw` above; no reference is left.
    drop(unsafe { Box::from_raw(place) });
}

/// A connection with one word of payload per slot, whose every unordered access loom reports.
#[derive(Default)]
pub struct Conn {
    /// The words that both ends share; [`crate::fifo::split`] makes its ends.
    pub control: ConnControl,
    /// What the slots hold.
    pub payload: [SharedCell<u32>; STEPS],
    /// For models of ranks that give up.
    pub abort: Word<u32, Sys>,
}

impl Conn {
    fn header(value: u32) -> SlotHeader {
        SlotHeader { tag: !value, len_bytes: value }
    }

    /// Waits for a credit and publishes a slot that holds `value`.
    pub fn produce(&self, producer: &mut StepProducer<'_>, value: u32) {
        while !producer.poll_credit(STEPS) {
            cpu_relax();
        }
        // SAFETY: the credit says that the consumer has read the slot; this is the only producer.
        unsafe { self.payload[producer.step().slot()].write(value) };
        producer.publish(Self::header(value));
    }

    /// As [`Self::produce`], publishing in the slot's line.
    pub fn produce_in_line(&self, producer: &mut StepProducer<'_>, value: u32) {
        while !producer.poll_credit(STEPS) {
            cpu_relax();
        }
        // SAFETY: as above.
        unsafe { self.payload[producer.step().slot()].write(value) };
        producer.publish_in_line(Self::header(value));
    }

    /// As [`Self::consume`], of what was published so.
    pub fn consume_line(&self, consumer: &mut StepConsumer<'_>) -> u32 {
        loop {
            if let Some(header) = consumer.poll_line() {
                return self.take(consumer, header);
            }
            cpu_relax();
        }
    }

    /// Reads and releases the slot that `header` came from.
    ///
    /// # Panics
    /// If the slot holds another step's payload.
    pub fn take(&self, consumer: &mut StepConsumer<'_>, header: SlotHeader) -> u32 {
        // SAFETY: `header` came from a poll that acquired the slot, which is not yet released.
        let value = unsafe { self.payload[consumer.step().slot()].read() };
        assert_eq!(header, Self::header(value), "header and payload are of one step");
        consumer.release();
        value
    }

    /// Waits for a slot and takes it.
    pub fn consume(&self, consumer: &mut StepConsumer<'_>) -> u32 {
        loop {
            if let Some(header) = consumer.poll() {
                return self.take(consumer, header);
            }
            cpu_relax();
        }
    }
}
