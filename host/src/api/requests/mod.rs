//! Layer: host / api / requests.
//! Takes: calls of a communicator on CPUs whose caller does not wait for them.
//! Gives: [`Scope`], whose operations borrow their buffers and are over when it ends; [`Request`], which owns its buffers; both are
//! started as [`Calls`].
//! Never: gives a buffer back before its operation is over, whatever becomes of the request.

mod calls;
mod scope;
mod request;

pub use calls::Calls;
pub use request::Request;
pub use scope::{Scope, ScopedRequest};
