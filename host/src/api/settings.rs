//! Layer: host / api.
//! Takes: nothing.
//! Gives: the types that [`Config`](super::Config)'s fields are made of, by one path.
//! Never: defines one.

pub use crate::bootstrap::InterfaceFilter;
pub use crate::log::{Level, Subsystems};
pub use crate::net::aggregate::AggregatorConfig;
pub use crate::net::ib::{AddressRange, HcaFilter};
pub use crate::net::plugin::PluginConfig;
pub use crate::topology::{Dump, PathKind};
pub use crate::transport::Allowed;
