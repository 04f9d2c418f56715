//! The kinds of faults, and what ranks call them.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Kill,
    /// Its process is stopped before it calls.
    Stop,
    /// Its process is stopped within an operation over sockets, which its proxy carries.
    StopWithin,
    /// Its process, and so its proxy, runs for 3 of 100 ms within an operation over sockets.
    Slow,
    /// Its host sends to the others at 50 Mbit/s.
    LinkSlow,
    MissingCall,
    OtherCall,
    OtherSize,
    /// A kernel before its call never ends.
    Hang,
    /// All have captured the call, and it does not launch its graph.
    MissingReplay,
}

impl What {
    pub const ALL: [What; 10] = [
        What::Kill,
        What::Stop,
        What::StopWithin,
        What::Slow,
        What::LinkSlow,
        What::MissingCall,
        What::OtherCall,
        What::OtherSize,
        What::Hang,
        What::MissingReplay,
    ];

    /// Whether it shows in a long operation over sockets.
    pub fn is_within(self) -> bool {
        matches!(self, What::StopWithin | What::Slow | What::LinkSlow)
    }

    /// What ranks hear of a stall; nothing where the fault is an error.
    pub fn class(self) -> Option<&'static str> {
        match self {
            What::Kill | What::OtherCall | What::OtherSize => None,
            What::Stop | What::StopWithin => Some("NoAnswer"),
            What::Slow => Some("Slow"),
            What::LinkSlow => Some("SlowLink"),
            What::MissingCall => Some("MissingEnter"),
            What::Hang | What::MissingReplay => Some("MissingStart"),
        }
    }
}
