//! tmp
use crate::bootstrap::*;
/// x
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("x")]
pub struct LaunchError;
/// x
pub struct LaunchEnv {
    /// x
    pub rank: u32,
    /// x
    pub nranks: u32,
}
impl LaunchEnv {
    /// x
    pub fn from_process() -> Result<Self, LaunchError> {
        Err(LaunchError)
    }
    /// x
    pub fn unique_id(&self) -> Result<UniqueId, LaunchError> {
        Err(LaunchError)
    }
}
