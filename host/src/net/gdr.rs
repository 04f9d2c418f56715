//! The user's settings of GPUDirect RDMA.

/// Settings of GPUDirect RDMA, except the maximal distance (`NCCL_NET_GDR_LEVEL`), which belongs to the topology.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GdrConfig {
    /// Whether sends use GPUDirect RDMA too (`NCCL_NET_GDR_READ`). `None`: if that is known to be faster.
    pub read: Option<bool>,
    /// Whether NICs at the CPU access the memory of a GPU that has a chip-to-chip link to it (`NCCL_NET_GDR_C2C`).
    pub c2c: bool,
    /// Whether to register memory as dma-bufs if possible (`NCCL_DMABUF_ENABLE`).
    pub dma_buf: bool,
    /// Whether to flush received data. `None`: if the GPU does not order writes itself. `NCCL_NET_FORCE_FLUSH=1` is
    /// always, `NCCL_GDR_FLUSH_DISABLE=1` never.
    pub flush: Option<bool>,
}

impl Default for GdrConfig {
    fn default() -> Self {
        GdrConfig { read: None, c2c: true, dma_buf: true, flush: None }
    }
}
