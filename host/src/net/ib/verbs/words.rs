//! The statuses of completions as text.

/// `enum ibv_wc_status` in its order: the header's name, and the usual meaning.
const STATUSES: [(&str, &str); 24] = [
    ("SUCCESS", "success"),
    ("LOC_LEN_ERR", "a message is longer than the memory for it"),
    ("LOC_QP_OP_ERR", "the request does not suit the queue pair; of rdma_rxe also: its interface is down"),
    ("LOC_EEC_OP_ERR", "the request does not suit the end-to-end context"),
    (
        "LOC_PROT_ERR",
        "this side's memory is not registered for it: was it unmapped or deregistered too early?",
    ),
    ("WR_FLUSH_ERR", "given up, because the connection had failed before"),
    ("MW_BIND_ERR", "a memory window cannot be bound"),
    ("BAD_RESP_ERR", "the peer answered with an unexpected packet"),
    ("LOC_ACCESS_ERR", "the peer wrote where this side's memory is not open to it"),
    ("REM_INV_REQ_ERR", "the peer's device holds the request for invalid"),
    (
        "REM_ACCESS_ERR",
        "the peer's memory is not open to this key: was it deregistered, or is the key of another connection?",
    ),
    ("REM_OP_ERR", "the peer's device could not do it"),
    (
        "RETRY_EXC_ERR",
        "no acknowledgement within NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT times: the peer is dead, or the \
      link or a switch between is",
    ),
    ("RNR_RETRY_EXC_ERR", "the peer had no receive posted"),
    ("LOC_RDD_VIOL_ERR", "wrong domain of reliable datagrams"),
    ("REM_INV_RD_REQ_ERR", "the peer refused a request of reliable datagrams"),
    ("REM_ABORT_ERR", "the peer aborted it"),
    ("INV_EECN_ERR", "no such end-to-end context"),
    ("INV_EEC_STATE_ERR", "the end-to-end context is in another state"),
    ("FATAL_ERR", "the device failed"),
    ("RESP_TIMEOUT_ERR", "the peer did not respond in time"),
    ("GENERAL_ERR", "the transport failed"),
    ("TM_ERR", "tag matching failed"),
    ("TM_RNDV_INCOMPLETE", "a rendezvous was not finished"),
];

/// The text of a status: its name in the header, its number, the driver's own code and the meaning.
pub fn of_status(status: u32, vendor_err: u32) -> String {
    match STATUSES.get(status as usize) {
        Some((name, meaning)) => format!("IBV_WC_{name} ({status}, vendor error {vendor_err:#x}): {meaning}"),
        None => format!(
            "completion status {status}, vendor error {vendor_err:#x}, which this library does not know"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_header_s_numbers() {
        assert!(
            of_status(12, 0x81)
                .starts_with("IBV_WC_RETRY_EXC_ERR (12, vendor error 0x81): no acknowledgement")
        );
        assert!(of_status(10, 0).contains("IBV_WC_REM_ACCESS_ERR (10"));
        assert!(of_status(5, 0).contains("WR_FLUSH_ERR"));
        assert!(of_status(77, 1).contains("status 77"));
    }
}
