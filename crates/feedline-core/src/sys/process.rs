//! Which process this is: threads do not survive a fork, so objects that own threads must notice one.

/// The process an object was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// This process.
    pub fn here() -> Home {
        Home(std::process::id())
    }

    /// True in a child made by fork after the object was made. Locks may then be held by threads that
    /// do not exist here, so nothing of the object may be touched.
    pub fn is_left(self) -> bool {
        std::process::id() != self.0
    }

    /// The number of the process the object was made in.
    pub fn pid(self) -> u32 {
        self.0
    }
}
