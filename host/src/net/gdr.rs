//! What users say of networks that use the memory of GPUs themselves.

/// Settings of GPUDirect RDMA, beside how far a NIC may be from a GPU (`NCCL_NET_GDR_LEVEL`), which is the topology's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GdrConfig {
    /// Whether what is sent is read from the GPU's memory (`NCCL_NET_GDR_READ`). `None`: where that is known to pay.
    pub read: Option<bool>,
    /// Whether a GPU with a chip-to-chip link to its CPU reaches NICs at that CPU through it (`NCCL_NET_GDR_C2C`).
    pub c2c: bool,
    /// Whether memory is made known to NICs as dma-bufs where that works (`NCCL_DMABUF_ENABLE`).
    pub dma_buf: bool,
    /// Whether what was received is flushed. `None`: where the GPU does not put writes into order itself. `NCCL_NET_FORCE_FLUSH=1` is
    /// always, `NCCL_GDR_FLUSH_DISABLE=1` never.
    pub flush: Option<bool>,
}

impl Default for GdrConfig {
    fn default() -> Self {
        GdrConfig { read: None, c2c: true, dma_buf: true, flush: None }
    }
}
