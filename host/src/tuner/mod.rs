//! Layer: host / tuner.
//! Takes: shared libraries with a table `ncclTunerPlugin_v2` to `_v6`, as users of NCCL have them; calls, and what they would take.
//! Gives: [`Tuner`], one communicator's: which algorithm, protocol and number of channels its plugin wants for a call.
//! Never: lets a plugin choose what the communicator has not, or what the user has excluded.
//!
//! From below: `abi`, the tables; `calls`, one set of functions for all versions; `load`, finding plugins; `costs`, NCCL's table of
//! algorithms and protocols, and what a plugin has made of it.

#[doc(hidden)]
pub mod abi;
mod about;
mod costs;
mod calls;
mod load;

pub use about::About;
pub use load::{Plugin, TunerError};

use crate::net::plugin::log;
use crate::plan::tuning::{Advice, Explanation, TUNED};
use crate::plan::{Call, CallPlan, Facts, Forced};
use abi::Opaque;
use calls::Calls;
use costs::Costs;
use std::sync::{Arc, Mutex, PoisonError};

/// One communicator's user of a plugin, or nobody.
#[derive(Debug, Default)]
pub struct Tuner(Option<Asked>);

#[derive(Debug)]
struct Asked {
    plugin: Arc<Plugin>,
    /// Plugins are written for one call at a time.
    context: Mutex<Context>,
}

#[derive(Debug)]
struct Context(Opaque);

// SAFETY: NCCL calls a communicator's tuner from whichever thread enqueues; plugins support that, one call at a time.
unsafe impl Send for Context {}

impl Tuner {
    /// Starts a plugin for a communicator.
    ///
    /// # Errors
    /// [`TunerError::Init`]: it refused.
    pub fn start(plugin: Option<Arc<Plugin>>, about: &About) -> Result<Tuner, TunerError> {
        let Some(plugin) = plugin else { return Ok(Tuner(None)) };
        log::begin();
        // SAFETY: it is loaded.
        let context = unsafe { plugin.calls.init(about) };
        let context = context
            .map_err(|code| TunerError::Init { plugin: plugin.to_string(), reason: log::describe(code) })?;
        Ok(Tuner(Some(Asked { plugin, context: Mutex::new(Context(context)) })))
    }

    /// Whether there is a plugin.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Plans a call, on which something else may be insisted than on the communicator's.
    pub fn plan(&self, facts: &Facts, call: &Call, forced: Option<Forced>) -> CallPlan {
        match &self.0 {
            None => facts.plan_with(call, forced),
            Some(asked) => {
                let facts = Facts { forced: forced.unwrap_or(facts.forced), ..*facts };
                asked.advised(&facts, call).plan(call)
            }
        }
    }

    /// Why a call goes as it goes.
    pub fn explain(&self, facts: &Facts, call: &Call) -> Explanation {
        match &self.0 {
            None => facts.explain(call),
            Some(asked) => asked.advised(facts, call).explain(call),
        }
    }
}

impl Asked {
    /// The facts with the plugin's advice for this call.
    fn advised(&self, facts: &Facts, call: &Call) -> Facts {
        let is_asked = TUNED.contains(&call.func) && call.count > 0 && facts.nranks > 1;
        Facts { advice: if is_asked { self.ask(facts, call) } else { None }, ..*facts }
    }

    /// What it wants for a call: nothing, if it changes nothing or fails.
    fn ask(&self, facts: &Facts, call: &Call) -> Option<Advice> {
        let before = Costs::of(facts, call);
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        log::begin();
        // SAFETY: the context is the plugin's, and the lock ours.
        let answer = unsafe { self.plugin.calls.ask(context.0, facts, call, before) };
        drop(context);
        match answer {
            Ok((after, channels)) => {
                let wanted = after.wanted(&before);
                let channels = u32::try_from(channels).ok().filter(|channels| *channels > 0);
                if wanted.is_none() && channels.is_none() {
                    return None;
                }
                let candidate = wanted.unwrap_or_else(|| facts.choose(call).candidate);
                Some(Advice { candidate, channels })
            }
            Err(code) => {
                let (func, reason) = (call.func, log::describe(code));
                tracing::info!("{}: getCollInfo of {func}: {reason}; the library chooses", self.plugin);
                None
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let context = self.context.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the context is the plugin's, and nobody uses it any more.
        unsafe { self.plugin.calls.end(context.0) };
    }
}

impl Calls {
    /// # Safety
    /// 1. The context is the plugin's, and no other call of it is under way.
    unsafe fn ask(&self, context: Opaque, facts: &Facts, call: &Call, costs: Costs) -> calls::Answer {
        let bytes = call.buffer_bytes(facts.nranks) as usize;
        // SAFETY: obligation 1.
        unsafe { self.coll_info(context, costs::function(call.func), bytes, costs) }
    }
}
