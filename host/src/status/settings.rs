//! What communicators want of the thread that answers for them.

/// Where NCCL's RAS protocol is answered if nobody says where.
pub const RAS_ADDRESS: &str = "localhost:28028";

/// What a communicator wants of the thread. That of several is what any of them wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Whether `oxccl status` is answered.
    pub enabled: bool,
    /// Where NCCL's RAS protocol is answered, if it is.
    pub ras: Option<String>,
    /// How the names of files with flight records begin, the rank follows. They are written when a communicator fails.
    pub flight_file: Option<String>,
    /// Whether SIGUSR2 has them written.
    pub on_signal: bool,
}

impl Settings {
    pub(super) const NOTHING: Settings =
        Settings { enabled: false, ras: None, flight_file: None, on_signal: false };

    pub(super) fn wants_anything(&self) -> bool {
        *self != Settings::NOTHING
    }

    pub(super) fn join(&mut self, more: &Settings) {
        self.enabled |= more.enabled;
        self.on_signal |= more.on_signal;
        self.ras = self.ras.take().or_else(|| more.ras.clone());
        self.flight_file = self.flight_file.take().or_else(|| more.flight_file.clone());
    }
}
