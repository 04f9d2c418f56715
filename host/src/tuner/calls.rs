//! A plugin's functions, whatever the version of its table.

use super::abi::{
    ALGORITHMS, Code, CollInfo2, CollInfo3, CollInfo4, Constants, End, Init2, Init5, NvlDomains, Opaque,
    PROTOCOLS, Tuner2, Tuner3, Tuner4, Tuner5, Tuner6,
};
use super::about::About;
use super::costs::Costs;
use crate::net::plugin::log;
use core::ffi::{CStr, c_char, c_int};

/// A function that a table lacks.
pub struct MissingFunction(pub &'static str);

/// The costs and the number of channels that a plugin left; 0 channels: it does not care.
pub type Answer = Result<(Costs, c_int), Code>;

#[derive(Clone, Copy, Debug)]
enum Init {
    Plain(Init2),
    Named(Init5),
}

#[derive(Clone, Copy, Debug)]
enum CollInfo {
    One(CollInfo2),
    Table(CollInfo3),
    Registered(CollInfo4),
}

/// The functions of a plugin.
#[derive(Clone, Debug)]
pub struct Calls {
    /// The plugin's name of itself.
    pub name: String,
    init: Init,
    coll_info: CollInfo,
    end: End,
}

impl Calls {
    /// Reads a table.
    ///
    /// # Safety
    /// 1. `table` is a tuner table of that version, 2 to 6, and stays one.
    pub unsafe fn read(version: u32, table: Opaque) -> Result<Calls, MissingFunction> {
        macro_rules! read {
            ($table:ty, $init:path, $coll_info:path, $end:ident, $end_name:literal) => {{
                // SAFETY: obligation 1.
                let table = unsafe { &*table.cast::<$table>() };
                Ok(Calls {
                    name: name(table.name),
                    init: $init(table.init.ok_or(MissingFunction("init"))?),
                    coll_info: $coll_info(table.get_coll_info.ok_or(MissingFunction("getCollInfo"))?),
                    end: table.$end.ok_or(MissingFunction($end_name))?,
                })
            }};
        }
        match version {
            2 => read!(Tuner2, Init::Plain, CollInfo::One, destroy, "destroy"),
            3 => read!(Tuner3, Init::Plain, CollInfo::Table, destroy, "destroy"),
            4 => read!(Tuner4, Init::Plain, CollInfo::Registered, destroy, "destroy"),
            5 => read!(Tuner5, Init::Named, CollInfo::Registered, finalize, "finalize"),
            _ => read!(Tuner6, Init::Named, CollInfo::Registered, finalize, "finalize"),
        }
    }

    /// Starts it for a communicator.
    ///
    /// # Safety
    /// 1. The plugin is loaded.
    pub unsafe fn init(&self, about: &About) -> Result<Opaque, Code> {
        let mut context: Opaque = core::ptr::null_mut();
        let (nranks, nhosts) = (about.nranks as usize, about.nhosts as usize);
        let code = match self.init {
            // SAFETY: obligation 1; the context is ours to write.
            Init::Plain(init) => unsafe { init(nranks, nhosts, log::logger(), &mut context) },
            Init::Named(init) => {
                let [least, most] = about.ranks_each;
                let [domains, min_ranks_per_domain, max_ranks_per_domain] =
                    [about.nhosts, least, most].map(|count| count as c_int);
                let mut domains = NvlDomains { domains, min_ranks_per_domain, max_ranks_per_domain };
                // They are NCCL's model's, which this library's is not: what a plugin writes there changes nothing.
                let mut constants = Constants::default();
                // SAFETY: obligation 1; all three are ours to write, and live until it returns.
                unsafe {
                    let (log, number) = (log::logger(), about.communicator);
                    init(&mut context, number, nranks, nhosts, log, &mut domains, &mut constants)
                }
            }
        };
        if code == 0 { Ok(context) } else { Err(code) }
    }

    /// What it makes of these costs for a function of so many bytes.
    ///
    /// # Safety
    /// 1. The context is its own, and no other call with it is under way.
    pub unsafe fn coll_info(
        &self,
        context: Opaque,
        function: c_int,
        bytes: usize,
        mut costs: Costs,
    ) -> Answer {
        /// Operations of a group that go together: each is planned by itself here.
        const PIPE_OPS: c_int = 1;
        let mut channels: c_int = 0;
        let (rows, columns) = (ALGORITHMS as c_int, PROTOCOLS as c_int);
        let code = match self.coll_info {
            CollInfo::One(ask) => {
                let (mut algorithm, mut protocol) = (-1, -1);
                let has_collnet = c_int::from(costs.has_collnet());
                // SAFETY: obligation 1; what it writes is ours.
                let code = unsafe {
                    let to = (&mut algorithm, &mut protocol, &mut channels);
                    ask(context, function, bytes, has_collnet, 0, PIPE_OPS, to.0, to.1, to.2)
                };
                costs.order(algorithm, protocol);
                code
            }
            // SAFETY: obligation 1; the table has so many rows and columns.
            CollInfo::Table(ask) => unsafe {
                ask(context, function, bytes, PIPE_OPS, &mut costs.0, rows, columns, &mut channels)
            },
            // SAFETY: as above.
            CollInfo::Registered(ask) => unsafe {
                ask(context, function, bytes, PIPE_OPS, &mut costs.0, rows, columns, 0, &mut channels)
            },
        };
        if code == 0 { Ok((costs, channels)) } else { Err(code) }
    }

    /// Ends its work for a communicator.
    ///
    /// # Safety
    /// 1. The context is its own, and is not used again.
    pub unsafe fn end(&self, context: Opaque) {
        log::begin();
        // SAFETY: obligation 1.
        let code = unsafe { (self.end)(context) };
        if code != 0 {
            tracing::warn!("tuner plugin {}: {}", self.name, log::describe(code));
        }
    }
}

fn name(at: *const c_char) -> String {
    if at.is_null() {
        return "without a name".to_owned();
    }
    // SAFETY: a table's name is a string as long as the table.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}
