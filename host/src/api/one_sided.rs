//! One-sided operations of [`DeviceCommunicator`](super::DeviceCommunicator): puts into other ranks' memory, and signals.
//!
//! ```text
//! every rank   window = register_window(memory)
//! one rank     put_signal(data -> window of rank 1, signal 0)      ... on its stream
//! rank 1       wait_signals([1 from that rank, signal 0])          ... later work on its stream finds the data
//! ```
//! They need no kernel and no channel: the driver copies, and streams wait for words. Ranks of other hosts are not reached by them.

use super::comm_call::InCommCall;
use super::communicator::Comm;
use super::error::{ArgumentError, Error};
use super::one_sided_error::{OneSidedError, Signal};
use crate::connect::ConnectError;
use crate::gpu::{CudaError, GpuMemory};
use crate::launch::{CommCall, RunError};
use crate::machine::cuda::{COPY_SLOTS, CallersMemory, Cuda, OneSided, StreamRef};
use crate::transport::PeerInfo;
use crate::transport::p2p::{Mapping, Reach, SignalTable, SignalsWanted, Window, WindowWanted};
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use std::sync::Arc;

/// Where a put goes.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// The window.
    pub window: &'a Window,
    /// Bytes from where the receiving rank's part of it begins.
    pub offset: u64,
    /// Whom, and the signal once the data is there.
    pub signal: Signal,
}

impl Comm<Cuda> {
    /// Makes the signals between the ranks of each host, once for the communicator. [`Self::register_window`] does so itself. Every
    /// rank calls it, in the order of the communicator's splits and windows; a later call does nothing.
    ///
    /// # Errors
    /// [`Error::Connect`]; the communicator's error.
    pub fn connect_signals(&self) -> Result<(), Error> {
        if self.engine()?.machine_mut().one_sided().is_some() {
            return Ok(());
        }
        self.with_peers(|peers| {
            let (device, settings) = (&self.device, &self.config.p2p);
            let wanted = SignalsWanted { device, peers, settings, slots: Signal::KINDS };
            let table = SignalTable::connect(self.member.watch().bootstrap(), &wanted).map_err(Box::new);
            self.engine()?.machine_mut().connect_one_sided(table.map_err(ConnectError::from)?);
            Ok(())
        })
    }

    /// Shows the ranks of this host `len_bytes` of this rank's GPU memory at `address`, into which they may then put data. Every rank
    /// calls it, in the order of the communicator's splits and windows, each with memory of its own and of a length of its own. Memory
    /// that others cannot map is found out when they put data into it.
    ///
    /// # Errors
    /// [`Error::Connect`]; the communicator's error.
    ///
    /// # Safety
    /// 1. The memory is not freed before every rank has dropped its window; a rank that has ended has.
    pub unsafe fn register_window(&self, address: u64, len_bytes: u64) -> Result<Window, Error> {
        self.connect_signals()?;
        self.with_peers(|peers| self.map_window(peers, address, len_bytes))
    }

    /// Registers a window as [`Self::register_window`] does, of the same length on every rank, which collectives use too: an all-gather,
    /// all-to-all, broadcast or scatter whose receive buffer lies in it (a gather: its send buffer) may then go by copy engines, without
    /// a multiprocessor, if all ranks are of one host and have access to each other's GPUs. It does where that is faster, and wherever
    /// possible by [`CtaPolicy::Zero`](crate::CtaPolicy::Zero). Long messages that are received anywhere in such a window go straight there.
    ///
    /// # Errors
    /// As there. [`OneSidedError::Unsymmetric`], on every rank: the lengths differ.
    ///
    /// # Safety
    /// 1. As there.
    /// 2. The window is dropped after the operations that have used it are done, and graphs of them are gone.
    /// 3. A rank's buffer of such an operation lies at the same offset of the same window on every rank, or in no symmetric window on any.
    ///    Otherwise the operation ends the communicator with [`Fault::Placement`](crate::Fault::Placement).
    /// 4. After a failure of the communicator other ranks' copies that were enqueued may still write to buffers of operations that were
    ///    called or not: what the window holds is undefined until every rank's streams are done.
    pub unsafe fn register_symmetric_window(&self, address: u64, len_bytes: u64) -> Result<Window, Error> {
        self.connect_signals()?;
        self.with_peers(|peers| {
            let window = self.map_window(peers, address, len_bytes)?;
            let bootstrap = self.member.watch().bootstrap();
            let mine = Mapping { len_bytes, addresses: window.addresses() };
            let (me, mut reached) = (self.rank() as usize, Vec::new());
            for (peer, block) in (0..).map(Rank).zip(&bootstrap.all_gather(&mine.to_bytes())?) {
                let theirs = Mapping::from_bytes(block).map_err(|_| ConnectError::Malformed { peer })?;
                if theirs.len_bytes != len_bytes {
                    let (rank, theirs) = (Rank(self.rank()), theirs.len_bytes);
                    return Err(OneSidedError::Unsymmetric { rank, mine: len_bytes, peer, theirs }.into());
                }
                reached.extend(theirs.addresses.get(me));
            }
            if reached.len() != self.size() as usize || self.size() == 1 {
                tracing::info!(
                    rank = self.rank(),
                    "collectives do not use the window: some rank does not reach another's part"
                );
                return Ok(window);
            }
            if !self.engine()?.machine_mut().has_copy_engines() {
                let (device, settings) = (&self.device, &self.config.p2p);
                let wanted = SignalsWanted { device, peers, settings, slots: COPY_SLOTS };
                let table = SignalTable::connect(bootstrap, &wanted).map_err(Box::new);
                let connected =
                    self.engine()?.machine_mut().connect_copy_engines(table.map_err(ConnectError::from)?);
                connected.map_err(|error| self.error(error))?;
            }
            self.engine()?.machine_mut().add_symmetric_window(&window, reached.into());
            Ok(window)
        })
    }

    fn map_window(&self, peers: &[PeerInfo], address: u64, len_bytes: u64) -> Result<Window, Error> {
        let memory = CallersMemory::around(&self.device, address);
        let memory = memory.map(|memory| Arc::new(memory) as Arc<dyn GpuMemory>);
        let (device, settings) = (&self.device, &self.config.p2p);
        let wanted = WindowWanted { device, peers, settings, memory, address, len_bytes };
        let window = Window::connect(self.member.watch().bootstrap(), &wanted).map_err(Box::new);
        Ok(window.map_err(ConnectError::from)?)
    }

    /// Enqueues a copy of `len_bytes` at `from` into another rank's window, or into this rank's, and then the signal. Later work on the
    /// stream may reuse the data.
    ///
    /// # Errors
    /// [`Error::OneSided`], [`Error::Argument`]; the communicator's error.
    ///
    /// # Safety
    /// 1. `from` is memory that this GPU can read until the stream has done the copy, and nobody writes it meanwhile.
    /// 2. Nobody else uses the bytes of the window from when the stream begins the copy until the signal was waited for.
    /// 3. The window, the receiver's memory and the stream live until the stream has done it.
    pub unsafe fn put_signal(
        &self,
        from: u64,
        len_bytes: u64,
        to: Put<'_>,
        stream: StreamRef<'_>,
    ) -> Result<(), Error> {
        let address = self.address_in(len_bytes, &to)?;
        let word = self.word(to.signal)?;
        self.one_sided(stream, |one_sided| {
            // SAFETY: (1) obligations 1, 2 and 3; the bytes lie within the window.
            unsafe { one_sided.copy(from, address, len_bytes as usize, stream) }?;
            one_sided.signal(word, stream)
        })
    }

    /// Enqueues a signal to another rank, or to this one.
    ///
    /// # Errors
    /// As for [`Self::put_signal`].
    pub fn signal(&self, signal: Signal, stream: StreamRef<'_>) -> Result<(), Error> {
        let word = self.word(signal)?;
        self.one_sided(stream, |one_sided| one_sided.signal(word, stream))
    }

    /// Makes later work on the stream wait for so many signals of each kind, beyond those that were waited for before. They may have come
    /// already. A wait ends when the communicator fails, too; the stream has no error then, [`Self::async_error`] has it.
    ///
    /// # Errors
    /// As for [`Self::put_signal`].
    pub fn wait_signals(&self, waits: &[(Signal, u32)], stream: StreamRef<'_>) -> Result<(), Error> {
        let words: Result<Vec<_>, Error> =
            waits.iter().map(|(signal, count)| Ok((self.word(*signal)?, u64::from(*count)))).collect();
        let words = words?;
        self.one_sided(stream, |one_sided| {
            words.iter().try_for_each(|(word, count)| one_sided.wait(*word, *count, stream))
        })
    }

    /// Runs a step of all ranks, in its turn, with everybody's peer info.
    fn with_peers<T>(&self, step: impl FnOnce(&[PeerInfo]) -> Result<T, Error>) -> Result<T, Error> {
        self.async_error().map_or(Ok(()), Err)?;
        let turn = self.member.splits.next();
        turn.wait();
        let bootstrap = self.member.watch().bootstrap();
        let mine = super::init::this_process(bootstrap, &self.config, &self.config.must_agree())?;
        let in_call = InCommCall::enter(self.member.stalls(), CommCall::Register, None);
        let blocks = in_call.gather(bootstrap, &mine.to_bytes())?;
        let read = |(peer, block): (u32, &Vec<u8>)| {
            PeerInfo::from_bytes(block).map_err(|_| ConnectError::Malformed { peer: Rank(peer) })
        };
        let peers: Result<Vec<PeerInfo>, ConnectError> = (0..).zip(&blocks).map(read).collect();
        step(&peers?)
    }

    /// Where a put writes.
    fn address_in(&self, len_bytes: u64, to: &Put<'_>) -> Result<u64, OneSidedError> {
        let (rank, peer, nranks) = (Rank(self.rank()), Rank(to.signal.peer), self.size());
        match to.window.reach(peer) {
            None => Err(OneSidedError::NoSuchRank { peer: peer.0, nranks }),
            Some(Reach::OtherHost) => Err(OneSidedError::OtherHost { rank, peer }),
            Some(Reach::Refused(why)) => Err(OneSidedError::Unreachable { rank, peer, why: why.clone() }),
            Some(Reach::Mapped { address, len_bytes: window_bytes }) => {
                let (offset, window_bytes) = (to.offset, *window_bytes);
                match offset.checked_add(len_bytes).filter(|end| *end <= window_bytes) {
                    Some(_) => Ok(address + offset),
                    None => Err(OneSidedError::OutOfBounds { peer, len_bytes, offset, window_bytes }),
                }
            }
        }
    }

    /// A signal's word.
    fn word(&self, Signal { peer, kind }: Signal) -> Result<(Rank, u32), Error> {
        let (rank, nranks) = (Rank(self.rank()), self.size());
        if peer >= nranks {
            return Err(OneSidedError::NoSuchRank { peer, nranks }.into());
        }
        if kind >= Signal::KINDS {
            return Err(OneSidedError::NoSuchSignal { kind }.into());
        }
        let word = (Rank(peer), kind);
        match self.engine()?.machine_mut().one_sided() {
            None => Err(OneSidedError::NotConnected { rank }.into()),
            Some(one_sided) if !one_sided.has(word) => {
                Err(OneSidedError::OtherHost { rank, peer: Rank(peer) }.into())
            }
            Some(_) => Ok(word),
        }
    }

    /// Enqueues, on a stream of this rank's GPU that is not being captured.
    fn one_sided(
        &self,
        stream: StreamRef<'_>,
        enqueue: impl FnOnce(&mut OneSided) -> Result<(), CudaError>,
    ) -> Result<(), Error> {
        let rank = Rank(self.rank());
        let (device, of_stream) = (self.unit(), stream.device().ordinal());
        if device != of_stream {
            return Err(ArgumentError::StreamDevice { rank, device, stream: of_stream }.into());
        }
        self.async_error().map_or(Ok(()), Err)?;
        let refused = |error| self.error(RunError::Gpu(error));
        if stream.is_capturing().map_err(refused)? {
            return Err(OneSidedError::Capturing.into());
        }
        let mut engine = self.engine()?;
        let Some(one_sided) = engine.machine_mut().one_sided() else {
            return Err(OneSidedError::NotConnected { rank }.into());
        };
        let put = enqueue(one_sided);
        drop(engine);
        put.map_err(refused)
    }
}
