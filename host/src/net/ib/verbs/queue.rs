//! Completion queues and queue pairs.

use super::abi::value::*;
use super::abi::{AhAttr, Cq, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Wc};
use super::device::{OpenDevice, status};
use std::ffi::{c_int, c_uint};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A completion queue, polled by its owner.
pub struct CompletionQueue {
    device: Arc<OpenDevice>,
    cq: NonNull<Cq>,
}

// SAFETY: libibverbs allows its objects to be used from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; the drivers lock a queue while they poll it.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue of `entries`, which must suffice for all requests of its queue pairs: a queue that overruns is
    /// dead.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(device: &Arc<OpenDevice>, entries: u32) -> io::Result<CompletionQueue> {
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the device is open; no event channel is wanted.
        let cq = unsafe { (device.verbs.ibv_create_cq)(device.context, entries, null_mut(), null_mut(), 0) };
        let cq = NonNull::new(cq).ok_or_else(io::Error::last_os_error)?;
        Ok(CompletionQueue { device: device.clone(), cq })
    }

    /// Polls completions; returns their number.
    ///
    /// # Errors
    /// The queue is broken.
    #[inline]
    pub fn poll(&self, completions: &mut [Wc]) -> io::Result<usize> {
        let cq = self.cq.as_ptr();
        // SAFETY: the queue exists until drop, and its driver fills at most so many completions.
        let count = unsafe {
            let context = (*cq).context;
            ((*context).ops.poll_cq)(cq, completions.len() as c_int, completions.as_mut_ptr())
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if !self.device.is_ours() {
            return;
        }
        // SAFETY: created in `new`; queue pairs hold their queue alive, so none uses it.
        unsafe { (self.device.verbs.ibv_destroy_cq)(self.cq.as_ptr()) };
    }
}

/// Packet options of a reliable connection.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Index into the table of partition keys.
    pub pkey_index: u16,
    /// Timeout of an acknowledgement: 4.096 us times 2 to this power.
    pub timeout: u8,
    /// Most retransmissions of a packet.
    pub retry_count: u8,
}

/// The other end of a reliable connection.
#[derive(Clone, Copy)]
pub struct Remote {
    pub qp_num: u32,
    /// Sequence number of the first packet, equal on both sides here.
    pub psn: u32,
    /// Value of `enum ibv_mtu`.
    pub mtu: u32,
    /// The local port and the route to the remote one.
    pub path: AhAttr,
}

/// A queue pair of a reliable connection.
pub struct QueuePair {
    device: Arc<OpenDevice>,
    /// Keeps the completion queue alive.
    _cq: Arc<CompletionQueue>,
    qp: NonNull<Qp>,
    inline_max_bytes: u32,
}

// SAFETY: libibverbs allows its objects to be used from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates an unconnected queue pair; both queues complete into `cq`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(device: &Arc<OpenDevice>, cq: &Arc<CompletionQueue>, cap: QpCap) -> io::Result<QueuePair> {
        let mut attr = QpInitAttr {
            qp_context: null_mut(),
            send_cq: cq.cq.as_ptr(),
            recv_cq: cq.cq.as_ptr(),
            srq: null_mut(),
            cap,
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the completion queue exist; `attr` is valid for reads and writes.
        let qp = unsafe { (device.verbs.ibv_create_qp)(device.pd, &mut attr) };
        let qp = NonNull::new(qp).ok_or_else(io::Error::last_os_error)?;
        let inline_max_bytes = attr.cap.max_inline_data;
        Ok(QueuePair { device: device.clone(), _cq: cq.clone(), qp, inline_max_bytes })
    }

    /// Its number, which the remote side needs to connect.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair exists until drop, and its number never changes.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// Most bytes of an inline request.
    pub fn inline_max_bytes(&self) -> usize {
        self.inline_max_bytes as usize
    }

    /// Connects it; afterwards both queues work. `access` states what the peer may do to this side's memory.
    ///
    /// # Errors
    /// The failed step and the driver's error.
    pub fn connect(
        &self,
        service: &Service,
        remote: &Remote,
        access: c_uint,
    ) -> Result<(), (&'static str, io::Error)> {
        let port_num = remote.path.port_num;
        let init = QpAttr {
            qp_state: QPS_INIT,
            pkey_index: service.pkey_index,
            port_num,
            qp_access_flags: access,
            ..QpAttr::default()
        };
        let to_init = QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS;
        self.modify(init, to_init).map_err(|error| ("ibv_modify_qp to INIT", error))?;
        let receive = QpAttr {
            qp_state: QPS_RTR,
            path_mtu: remote.mtu,
            dest_qp_num: remote.qp_num,
            rq_psn: remote.psn,
            max_dest_rd_atomic: 1,
            // 0.64 ms. Never used: receives are posted before the CTS entry is sent.
            min_rnr_timer: 12,
            ah_attr: remote.path,
            ..QpAttr::default()
        };
        let to_receive = QP_STATE
            | QP_AV
            | QP_PATH_MTU
            | QP_DEST_QPN
            | QP_RQ_PSN
            | QP_MAX_DEST_RD_ATOMIC
            | QP_MIN_RNR_TIMER;
        self.modify(receive, to_receive).map_err(|error| ("ibv_modify_qp to RTR", error))?;
        let send = QpAttr {
            qp_state: QPS_RTS,
            sq_psn: remote.psn,
            timeout: service.timeout,
            retry_cnt: service.retry_count,
            // 7 is unlimited; as above, never used.
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..QpAttr::default()
        };
        let to_send = QP_STATE | QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_SQ_PSN | QP_MAX_QP_RD_ATOMIC;
        self.modify(send, to_send).map_err(|error| ("ibv_modify_qp to RTS", error))
    }

    fn modify(&self, mut attr: QpAttr, mask: c_uint) -> io::Result<()> {
        // SAFETY: the queue pair exists; `attr` is valid.
        status(unsafe { (self.device.verbs.ibv_modify_qp)(self.qp.as_ptr(), &mut attr, mask as c_int) })
    }

    /// Posts a chain of requests.
    ///
    /// # Errors
    /// The driver's error; neither the refused request nor any after it was posted.
    ///
    /// # Safety
    /// 1. `next` and `sg_list` of each request are null or point to valid structures.
    /// 2. The memory of the scatter-gather entries is registered and stays so until the requests complete; until then
    ///    nobody writes the memory of requests that are not inline (of reads: nobody accesses it).
    #[inline]
    pub unsafe fn post_send(&self, request: &mut SendWr) -> io::Result<()> {
        let (qp, mut refused) = (self.qp.as_ptr(), null_mut());
        // SAFETY: the queue pair exists until drop; obligations 1 and 2 are the caller's.
        status(unsafe {
            let context = (*qp).context;
            ((*context).ops.post_send)(qp, request, &mut refused)
        })
    }

    /// Posts a receive without memory, for the immediate of an RDMA write.
    ///
    /// # Errors
    /// The driver's error.
    #[inline]
    pub fn post_recv(&self, wr_id: u64) -> io::Result<()> {
        let mut request = RecvWr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let (qp, mut refused) = (self.qp.as_ptr(), null_mut());
        // SAFETY: the queue pair exists until drop; the request has no memory.
        status(unsafe {
            let context = (*qp).context;
            ((*context).ops.post_recv)(qp, &mut request, &mut refused)
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.device.is_ours() {
            return;
        }
        // SAFETY: created in `new`. Afterwards the device touches none of the memory of its requests.
        unsafe { (self.device.verbs.ibv_destroy_qp)(self.qp.as_ptr()) };
    }
}
