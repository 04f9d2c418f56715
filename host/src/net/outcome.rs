//! The outcome of a connection's setup, which is final.

use super::NetError;

/// How a setup that is polled has ended: its first error, or that its connection was handed out.
#[derive(Default)]
pub(crate) struct Outcome(Option<NetError>);

impl Outcome {
    /// # Errors
    /// It has ended.
    pub(crate) fn check_open(&self) -> Result<(), NetError> {
        self.0.clone().map_or(Ok(()), Err)
    }

    /// Whether the connection is to be handed out now, by what a step of the setup has returned. Later polls fail:
    /// `call` on `device` came too late, or with this step's error.
    ///
    /// # Errors
    /// The step's.
    pub(crate) fn settle(
        &mut self,
        step: Result<bool, NetError>,
        device: &str,
        call: &'static str,
    ) -> Result<bool, NetError> {
        match &step {
            Ok(false) => {}
            Ok(true) => self.0 = Some(NetError::of_call(device, call, "it has already succeeded".to_owned())),
            Err(error) => self.0 = Some(error.clone()),
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(call: &'static str) -> NetError {
        NetError::of_call("eth0", call, "refused".to_owned())
    }

    #[test]
    fn the_first_end_stays() {
        let mut handed_out = Outcome::default();
        assert_eq!(handed_out.settle(Ok(false), "eth0", "poll_join"), Ok(false));
        assert_eq!(handed_out.check_open(), Ok(()));
        assert_eq!(handed_out.settle(Ok(true), "eth0", "poll_join"), Ok(true));
        let late = handed_out.check_open().expect_err("its connection is gone").to_string();
        assert!(late.contains("eth0") && late.contains("already"), "{late}");

        let mut failed = Outcome::default();
        assert_eq!(failed.settle(Err(error("connect")), "eth0", "poll_join"), Err(error("connect")));
        assert_eq!(failed.check_open(), Err(error("connect")));
    }
}
