//! Layer: perf / mpi.
//! Takes: the path of the shared library of Open MPI, or of an MPI with MPICH's binary interface.
//! Gives: the functions and handles that the MPI engine and the MPI team need.
//! Never: a build dependency: the library is opened when a run asks for it.

mod symbols;

pub use symbols::{Handle, Interface};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use oxccl_shared::abi::{DataType, RedOp};
use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use symbols::Symbols;

/// Why MPI cannot be used or what it reported.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// The library cannot be opened.
    #[error("{}: {reason}; Debian's package is libopenmpi-dev, another place is given as --engine mpi=/path/libmpi.so.40 (Open MPI) or --engine mpich=/path/libmpi.so.12 (MPICH, Intel MPI)", .path.display())]
    Open { path: PathBuf, reason: String },
    /// The library is no MPI of a known interface.
    #[error("{}: no symbol {symbol}; the binary interface of Open MPI or MPICH was expected", .path.display())]
    Foreign { path: PathBuf, symbol: &'static str },
    /// The process was not started by mpirun.
    #[error(
        "the mpi engine measures ranks that mpirun started: mpirun -n 2 oxccl perf ... --engine oxccl --engine mpi"
    )]
    NotLaunched,
    /// A function failed.
    #[error("{function} returned {code} ({text})")]
    Call { function: &'static str, code: c_int, text: String },
    /// A count beyond MPI's `int`.
    #[error("{count} elements are more than an MPI call can name")]
    Count { count: usize },
}

/// An initialised MPI; finalised when the last clone goes.
#[derive(Clone)]
pub struct Mpi(Rc<Initialised>);

struct Initialised {
    symbols: Symbols,
    /// Keeps the symbols' addresses valid; closed last.
    _library: Library,
    rank: u32,
    size: u32,
}

impl Mpi {
    /// Opens the library and joins the ranks that mpirun started.
    pub fn init(path: &Path) -> Result<Mpi, MpiError> {
        // Open MPI's, and MPICH's and Intel MPI's.
        if ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].iter().all(|name| std::env::var_os(name).is_none()) {
            return Err(MpiError::NotLaunched);
        }
        // Open MPI's plugins look for its symbols among the global ones.
        // SAFETY: its initialisers are those of a library meant to be loaded by any program.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|error| MpiError::Open { path: path.into(), reason: error.to_string() })?;
        let symbols =
            Symbols::find(&library).map_err(|symbol| MpiError::Foreign { path: path.into(), symbol })?;
        let mut mpi = Initialised { symbols, _library: library, rank: 0, size: 0 };
        mpi.start()?;
        Ok(Mpi(Rc::new(mpi)))
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// Ranks.
    pub fn size(&self) -> u32 {
        self.0.size
    }

    pub fn symbols(&self) -> &Symbols {
        &self.0.symbols
    }

    /// All ranks.
    pub fn world(&self) -> Handle {
        self.0.symbols.comm_world
    }

    /// Its binary interface.
    pub fn interface(&self) -> Interface {
        self.0.symbols.interface
    }

    /// The first line of what the library says of itself.
    pub fn version(&self) -> String {
        let mut text = [0u8; 8192];
        let mut len: c_int = 0;
        // SAFETY: MPI_MAX_LIBRARY_VERSION_STRING is 256 of Open MPI, 8192 of MPICH.
        let code = unsafe { (self.0.symbols.get_library_version)(text.as_mut_ptr().cast(), &mut len) };
        let len = if code == 0 { (len as usize).min(text.len()) } else { 0 };
        let text = String::from_utf8_lossy(&text[..len]);
        let first = text.trim_end_matches('\0').lines().next().unwrap_or_default();
        first.split(',').next().unwrap_or_default().trim().to_string()
    }

    /// The handle of an element type, if MPI has it.
    pub fn datatype(&self, dtype: DataType) -> Option<Handle> {
        let symbols = &self.0.symbols;
        Some(match dtype {
            DataType::I8 => symbols.int8,
            DataType::U8 => symbols.uint8,
            DataType::I32 => symbols.int32,
            DataType::U32 => symbols.uint32,
            DataType::I64 => symbols.int64,
            DataType::U64 => symbols.uint64,
            DataType::F32 => symbols.float,
            DataType::F64 => symbols.double,
            DataType::F16 | DataType::BF16 | DataType::F8E4M3 | DataType::F8E5M2 => return None,
        })
    }

    /// The handle of an operator, if MPI has it.
    pub fn op(&self, op: RedOp) -> Option<Handle> {
        let symbols = &self.0.symbols;
        match op {
            RedOp::Sum => Some(symbols.sum),
            RedOp::Prod => Some(symbols.prod),
            RedOp::Max => Some(symbols.max),
            RedOp::Min => Some(symbols.min),
            RedOp::Avg | RedOp::PreMulSum => None,
        }
    }

    /// Turns a return value into a result.
    pub fn check(&self, function: &'static str, code: c_int) -> Result<(), MpiError> {
        if code == 0 { Ok(()) } else { Err(self.0.failed(function, code)) }
    }

    /// Ends all ranks. Used when this one cannot go on: the others would wait for it for ever.
    pub fn abort(&self) {
        // SAFETY: initialised; does not return when it succeeds.
        unsafe { (self.0.symbols.abort)(self.0.symbols.comm_world, 1) };
    }
}

impl Initialised {
    fn start(&mut self) -> Result<(), MpiError> {
        /// MPI_THREAD_FUNNELED: other threads exist, but only this one calls MPI.
        const FUNNELED: c_int = 1;
        let (mut provided, mut rank, mut size) = (0, 0, 0);
        let s = &self.symbols;
        // SAFETY: called once per process, before any other MPI call; null arguments are allowed since MPI-2.
        let code =
            unsafe { (s.init_thread)(std::ptr::null_mut(), std::ptr::null_mut(), FUNNELED, &mut provided) };
        self.check("MPI_Init_thread", code)?;
        // SAFETY: initialised, and the default error handler would end the process instead of returning a code.
        let code = unsafe { (s.comm_set_errhandler)(s.comm_world, s.errors_return) };
        self.check("MPI_Comm_set_errhandler", code)?;
        // SAFETY: initialised; `rank` outlives the call.
        let code = unsafe { (s.comm_rank)(s.comm_world, &mut rank) };
        self.check("MPI_Comm_rank", code)?;
        // SAFETY: initialised; `size` outlives the call.
        let code = unsafe { (s.comm_size)(s.comm_world, &mut size) };
        self.check("MPI_Comm_size", code)?;
        (self.rank, self.size) = (rank as u32, size as u32);
        Ok(())
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<(), MpiError> {
        if code == 0 { Ok(()) } else { Err(self.failed(function, code)) }
    }

    #[cold]
    fn failed(&self, function: &'static str, code: c_int) -> MpiError {
        let mut text = [0 as c_char; 1024];
        let mut len: c_int = 0;
        // SAFETY: MPI_MAX_ERROR_STRING is 256 of Open MPI, 512 of MPICH.
        unsafe { (self.symbols.error_string)(code, text.as_mut_ptr(), &mut len) };
        let text = text.iter().take(len.max(0) as usize).map(|c| *c as u8 as char).collect();
        MpiError::Call { function, code, text }
    }
}

impl Drop for Initialised {
    fn drop(&mut self) {
        // SAFETY: initialised, and nothing uses MPI afterwards: this was the last clone.
        unsafe { (self.symbols.finalize)() };
    }
}
