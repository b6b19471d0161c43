//! Which process this is, what it uses, and with whom it ends. Threads do not survive a fork, so objects
//! that own threads must notice one.

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

/// The resident memory of this process, in bytes; zero where the system does not tell.
pub fn resident_bytes() -> u64 {
    let text = super::file::read_text(std::path::Path::new("/proc/self/statm")).unwrap_or_default();
    let pages: u64 =
        text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
    pages * rustix::param::page_size() as u64
}

/// Has this process killed when its parent ends, and tells whether the parent is still `parent`: it
/// may have ended before.
pub fn die_with_parent(parent: u32) -> bool {
    let set = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let present = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    set.is_ok() && u32::try_from(present) == Ok(parent)
}
