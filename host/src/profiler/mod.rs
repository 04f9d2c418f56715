//! Layer: host / profiler.
//! Takes: shared libraries with a table `ncclProfiler_v4` to `_v6`, as users of NCCL have them; what a communicator runs.
//! Gives: [`Profiler`], one communicator's: events of groups, collectives and messages, each stopped when it is dropped.
//! Never: costs more than a comparison where there is no plugin.
//!
//! ```text
//! versions 5, 6:  group's call > collective's or message's call > collective or message     (beside: the group)
//! version 4:      group > collective or message
//! ```
//! From below: `abi`, the tables; `names`, words as NCCL writes them; `load`, finding plugins and calling them.

#[doc(hidden)]
pub mod abi;
mod names;
mod about;
mod load;

pub use about::About;

use crate::net::plugin::{PluginName, log};
use crate::plan::{Call, Plan};
use abi::{
    COLL, COLL_API, Coll, CollApi, Facts, GROUP, GROUP_API, GroupApi, Opaque, P2P, P2P_API, P2p, P2pApi,
};
use core::ffi::c_int;
use load::Plugin;
use oxccl_shared::abi::Rank;
use std::ptr::null_mut;

/// One communicator's user of a plugin, or nobody.
#[derive(Debug, Default)]
pub struct Profiler(Option<Told>);

#[derive(Debug)]
struct Told {
    plugin: Plugin,
    context: Opaque,
    /// Which events it wants.
    mask: u32,
    rank: Rank,
}

// SAFETY: NCCL calls profilers from its users' threads and from its own, which plugins support; one communicator's events come from one
// thread at a time.
unsafe impl Send for Told {}
// SAFETY: as above.
unsafe impl Sync for Told {}

/// A call with its buffers, as far as events tell of it.
#[derive(Clone, Copy, Debug)]
pub struct CallFacts<'a> {
    /// The call.
    pub call: &'a Call,
    /// Its input.
    pub send: *const u8,
    /// Its output.
    pub recv: *mut u8,
    /// Its number among the communicator's collectives.
    pub seq: u64,
    /// Its plan, where kernels carry it out.
    pub plan: Option<&'a Plan>,
}

/// Calls that run together.
#[derive(Debug)]
pub struct Group<'a> {
    told: &'a Told,
    // In the order in which they end.
    group: Event<'a>,
    api: Event<'a>,
}

/// An event that is not over.
#[derive(Debug)]
pub struct Event<'a> {
    told: &'a Told,
    /// Null if the plugin does not want it.
    handle: Opaque,
}

/// The events of a call: the call, and what carries it out, which ends first.
#[derive(Debug)]
pub struct Events<'a> {
    _work: Event<'a>,
    _call: Event<'a>,
}

impl Profiler {
    /// Starts the plugin that the user wants for a communicator. One that refuses is a warning, and there is none then, as in NCCL.
    pub fn start(wanted: &PluginName, about: &About<'_>) -> Profiler {
        let Some(plugin) = Plugin::find(wanted) else { return Profiler(None) };
        // SAFETY: it is loaded.
        match unsafe { plugin.init(about) } {
            Ok((context, mask)) => Profiler(Some(Told { plugin, context, mask, rank: about.rank })),
            Err(code) => {
                let (name, reason) = (&plugin.name, log::describe(code));
                tracing::warn!("profiler plugin {name}: init: {reason}; there is none then");
                Profiler(None)
            }
        }
    }

    /// Begins calls that run together, if anybody wants to know.
    #[inline]
    pub fn group(&self) -> Option<Group<'_>> {
        self.0.as_ref().filter(|told| told.mask != 0).map(Told::group)
    }
}

impl Told {
    fn group(&self) -> Group<'_> {
        let facts = GroupApi { graph_captured: false, group_depth: 1 };
        let api = self.api_event(GROUP_API, null_mut(), Facts { group_api: facts });
        let group = self.event(GROUP, api.handle, Facts { room: [0; 16] });
        Group { told: self, group, api }
    }

    fn event(&self, kind: u32, parent: Opaque, facts: Facts) -> Event<'_> {
        let is_wanted = self.mask & kind != 0;
        // SAFETY: the context is the plugin's; parents outlive what is in them, and the facts are the kind's.
        let start = || unsafe { self.plugin.start(self.context, kind, parent, self.rank.0 as c_int, facts) };
        Event { told: self, handle: if is_wanted { start() } else { null_mut() } }
    }

    /// One that version 4 has not.
    fn api_event(&self, kind: u32, parent: Opaque, facts: Facts) -> Event<'_> {
        match self.plugin.has_api_events() {
            true => self.event(kind, parent, facts),
            false => Event { told: self, handle: null_mut() },
        }
    }
}

impl<'a> Group<'a> {
    /// A call begins.
    pub fn begin(&self, what: &CallFacts<'_>) -> Events<'a> {
        if what.call.func.is_message() { self.message(what) } else { self.collective(what) }
    }

    /// What lies above a call's work: in version 4 the group.
    fn above(&self, call: &Event<'_>) -> Opaque {
        if self.told.plugin.has_api_events() { call.handle } else { self.group.handle }
    }

    fn collective(&self, what: &CallFacts<'_>) -> Events<'a> {
        let Call { func, dtype, root, count, .. } = *what.call;
        let (func, datatype) = (names::func(func).as_ptr(), names::datatype(dtype).as_ptr());
        let (root, count) = (root.0 as c_int, count as usize);
        let stream = null_mut();
        let api = CollApi { func, count, datatype, root, stream, graph_captured: false };
        let call = self.told.api_event(COLL_API, self.api.handle, Facts { coll_api: api });
        let threads = what.plan.map_or(0, |plan| plan.threads);
        let coll = Coll {
            seq_number: what.seq,
            func,
            send_buff: what.send.cast(),
            recv_buff: what.recv.cast(),
            count,
            root,
            datatype,
            channels: what.plan.map_or(0, |plan| plan.channels.min(u8::MAX.into()) as u8),
            warps: (threads / 32).min(u8::MAX.into()) as u8,
            algo: what.plan.map_or(names::NONE, |plan| names::algorithm(plan.algorithm)).as_ptr(),
            proto: what.plan.map_or(names::NONE, |plan| names::protocol(plan.protocol)).as_ptr(),
            parent_group: self.group.handle,
        };
        let work = self.told.event(COLL, self.above(&call), Facts { coll });
        Events { _work: work, _call: call }
    }

    fn message(&self, what: &CallFacts<'_>) -> Events<'a> {
        let Call { func, dtype, root: peer, count, .. } = *what.call;
        let buff = if what.send.is_null() { what.recv } else { what.send.cast_mut() };
        let (func, datatype) = (names::func(func).as_ptr(), names::datatype(dtype).as_ptr());
        let (peer, count) = (peer.0 as c_int, count as usize);
        let api = P2pApi { func, count, datatype, stream: null_mut(), graph_captured: false };
        let call = self.told.api_event(P2P_API, self.api.handle, Facts { p2p_api: api });
        let (buff, parent_group) = (buff.cast(), self.group.handle);
        let p2p = P2p { func, buff, datatype, count, peer, channels: 1, parent_group };
        let work = self.told.event(P2P, self.above(&call), Facts { p2p });
        Events { _work: work, _call: call }
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: it was started and not stopped yet.
            unsafe { self.told.plugin.stop(self.handle) };
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // SAFETY: the context is the plugin's; events borrow this, so none is left.
        unsafe { self.plugin.end(self.context) };
    }
}
