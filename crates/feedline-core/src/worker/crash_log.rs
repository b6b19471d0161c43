//! The stack of a worker that crashed or was asked for it, written by a signal handler into memory
//! that outlives the worker.

use std::io;

use crate::sys::descriptor::Descriptor;
use crate::sys::memory::SharedMemory;

/// The bytes that are kept; the rest of a longer text is lost.
const BYTES: usize = 64 << 10;

/// The crash log of one worker.
pub(crate) struct CrashLog {
    shared: SharedMemory,
}

impl CrashLog {
    /// Creates an empty log, and the descriptor that the worker writes to.
    pub(crate) fn create() -> io::Result<(Descriptor, CrashLog)> {
        let (file, shared) = SharedMemory::create("feedline-crash-log", BYTES)?;
        Ok((file, CrashLog { shared }))
    }

    /// The text written so far.
    pub(crate) fn text(&self) -> String {
        let mut bytes = vec![0; BYTES];
        self.shared.read(0, &mut bytes);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(BYTES);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn the_text_is_readable_after_the_writer_is_gone() {
        let (file, log) = CrashLog::create().unwrap();
        assert_eq!(log.text(), "");
        let mut file = File::from(file.into_owned().unwrap());
        file.write_all(b"Fatal Python error: Segmentation fault\n").unwrap();
        drop(file);
        assert_eq!(log.text(), "Fatal Python error: Segmentation fault\n");
    }
}
