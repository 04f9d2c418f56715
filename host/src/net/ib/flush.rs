//! The flush of device memory. A completion says that the device has sent its writes towards a GPU, not that they
//! have arrived: the writes and the completion take different paths. A read of the same memory through the same
//! device pushes the writes ahead of it, so once the read is answered they are visible.

use super::config::IbConfig;
use super::link::{QueuePairs, service};
use super::port::Port;
use super::verbs::abi::value::*;
use super::verbs::abi::{SendWr, Sge};
use super::verbs::{CompletionQueue, QueuePair, Region, Remote};
use crate::net::NetError;
use std::cell::UnsafeCell;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

/// A queue pair connected to itself, and a byte to read into.
pub(super) struct Flusher {
    // Drop order matters: the queue pair before the memory that it accesses.
    loopback: QueuePair,
    region: Region,
    /// Written by the device, never read.
    target: Box<UnsafeCell<u64>>,
}

impl Flusher {
    /// # Errors
    /// The driver's error.
    pub(super) fn new(
        port: &Port,
        cq: &Arc<CompletionQueue>,
        config: &IbConfig,
    ) -> Result<Flusher, NetError> {
        let failed = |call, error: io::Error| NetError::of_io(&port.name(), None, call, &error);
        let target = Box::new(UnsafeCell::new(0));
        // SAFETY: the target lives on the heap for longer than its region, by the order of the fields.
        let region = unsafe { Region::of_memory(&port.device, target.get().cast(), size_of::<u64>(), false) };
        let region = region.map_err(|error| failed("ibv_reg_mr", error))?;
        let loopback = QueuePairs::queue_pair(port, cq).map_err(|error| failed("ibv_create_qp", error))?;
        let path = port.path_to(port.lid, port.gid.gid, config);
        let own = Remote { qp_num: loopback.number(), psn: 0, mtu: port.mtu, path };
        loopback
            .connect(&service(config), &own, ACCESS_REMOTE_READ)
            .map_err(|(call, error)| failed(call, error))?;
        Ok(Flusher { loopback, region, target })
    }

    /// Reads the byte at `last`, the last one received.
    pub(super) fn post(&mut self, last: *const u8, key: u32, id: u64) -> io::Result<()> {
        let addr = self.target.get().addr() as u64;
        let mut sge = Sge { addr, length: 1, lkey: self.region.local_key() };
        let mut request = SendWr {
            wr_id: id,
            next: null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
            opcode: WR_RDMA_READ,
            send_flags: SEND_SIGNALED,
            imm_data: 0,
            remote_addr: last.addr() as u64,
            rkey: key,
            rest_of_unions: [0; 9],
        };
        // SAFETY: the scatter-gather entry outlives the call; the target is registered and the flusher's own.
        unsafe { self.loopback.post_send(&mut request) }
    }

    /// The result of the last completed read.
    #[cfg(test)]
    pub(super) fn read_bytes(&self) -> [u8; 1] {
        // SAFETY: no read is in flight.
        unsafe { self.target.get().cast::<[u8; 1]>().read_volatile() }
    }
}
