//! Files of many kinds of machine, for tests of what reads the limits of a machine. Each has the few lines that
//! are read, as such a machine shows them; `feedline doctor --record` writes such a file.

macro_rules! machines {
    ($($name:literal,)*) => {
        /// The name and the recording of each machine.
        pub const MACHINES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("machines/", $name, ".txt"))),)*];
    };
}

machines! {
    "bare_metal",
    "docker_v1",
    "docker_v2",
    "gvisor",
    "kubernetes_burstable",
    "kubernetes_guaranteed",
    "lxc",
    "microvm",
    "nested",
    "slurm",
    "small_vm",
    "strict",
    "systemd_user",
    "wsl2",
}

/// The recording with a name.
pub fn recording(name: &str) -> Option<&'static str> {
    MACHINES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
