//! Data sets for the tests, good and corrupt, and a folder to run commands in.

use feedline_core::decode::{Mode, png};
use feedline_core::format::example::{self, List};
use feedline_core::format::pack::Packer;
use feedline_core::format::{Packing, tar, tfrecord};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A temporary folder with data, where commands run and save their indices.
pub(crate) struct Sandbox(tempfile::TempDir);

/// Exit code and output of a command.
pub(crate) struct RunOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        Sandbox(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// The names of all files below a folder, sorted.
    pub(crate) fn files(&self, folder: &str) -> Vec<String> {
        fn look(folder: &Path, root: &Path, found: &mut Vec<String>) {
            let Ok(entries) = std::fs::read_dir(folder) else { return };
            for entry in entries {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => look(&path, root, found),
                    false => {
                        found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                    }
                }
            }
        }
        let mut found = Vec::new();
        let folder = self.path(folder);
        look(&folder, &folder, &mut found);
        found.sort();
        found
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feedline"));
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env_remove("COLUMNS")
            .env("FEEDLINE_CACHE", self.path("cache"));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> RunOutput {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let (stdout, stderr) = (self.neutral(&text(&stdout)), self.neutral(&text(&stderr)));
        RunOutput { code: status.code(), stdout, stderr }
    }

    /// Replaces the name of the folder, which differs in each run.
    fn neutral(&self, said: &str) -> String {
        said.replace(self.0.path().to_str().unwrap(), "PLACE")
    }
}

/// A small image whose pixels depend on the number.
pub(crate) fn picture(number: usize) -> Vec<u8> {
    let pixels: Vec<u8> = (0..12 * 8 * 3).map(|at| (at * (number + 3)) as u8).collect();
    png::encode(&pixels, 12, 8, Mode::Rgb).unwrap()
}

/// An Example with an image and a label.
pub(crate) fn labelled(number: usize) -> Vec<u8> {
    let image = picture(number);
    let label = List::Ints(vec![(number % 3) as i64]);
    example::write(&[("image_raw", List::Bytes(vec![&image])), ("label", label)])
}

/// A TFRecord file.
pub(crate) fn shard(records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    records.iter().for_each(|record| tfrecord::write(record, &mut bytes));
    bytes
}

/// A TFRecord file of Examples with these numbers.
pub(crate) fn examples(numbers: std::ops::Range<usize>) -> Vec<u8> {
    shard(&numbers.map(labelled).collect::<Vec<_>>())
}

/// A tar of these members.
pub(crate) fn archive(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    members.iter().for_each(|(name, data)| tar::write(name.as_bytes(), data, &mut bytes));
    tar::write_end(&mut bytes);
    bytes
}

/// The members of a sample: an image and its class.
pub(crate) fn sample(number: usize) -> Vec<(String, Vec<u8>)> {
    let class = (number % 3).to_string().into_bytes();
    vec![(format!("{number:03}.png"), picture(number)), (format!("{number:03}.cls"), class)]
}

/// A tar of samples with these numbers.
pub(crate) fn samples(numbers: std::ops::Range<usize>) -> Vec<u8> {
    archive(&numbers.flat_map(sample).collect::<Vec<_>>())
}

pub(crate) fn packed(packing: Packing, bytes: &[u8]) -> Vec<u8> {
    let (mut packer, mut packed) = (Packer::new(packing).unwrap(), Vec::new());
    packer.pack(bytes, &mut packed).unwrap();
    packer.finish(&mut packed).unwrap();
    packed
}
