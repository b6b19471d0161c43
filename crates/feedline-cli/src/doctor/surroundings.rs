//! What a program has set up around a loader: variables of the environment, and what only Python knows.

use serde_json::Value;

/// Variables that set the number of threads of numeric libraries.
pub(crate) const THREAD_VARIABLES: [&str; 6] = [
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
];
/// Variables that bind threads to processors.
pub(crate) const BINDING_VARIABLES: [&str; 3] =
    ["OMP_PROC_BIND", "KMP_AFFINITY", "GOMP_CPU_AFFINITY"];

/// The surroundings of a loader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    /// Variables of the environment that matter, with their values.
    pub(crate) variables: Vec<(String, String)>,
    /// Threads of this process, if it is the one that loads.
    pub(crate) threads: Option<u64>,
    /// How multiprocessing starts processes: "fork", "spawn" or "forkserver".
    pub(crate) start_method: Option<String>,
    /// How torch shares tensors: "file_descriptor" or "file_system".
    pub(crate) sharing_strategy: Option<String>,
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn here() -> Surroundings {
        let names = THREAD_VARIABLES.iter().chain(&BINDING_VARIABLES);
        let variables =
            names.filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
        Surroundings { variables: variables.collect(), ..Surroundings::default() }
    }

    /// Adds what Python knows, from a JSON object.
    pub(crate) fn with_json(mut self, known: &Value) -> Surroundings {
        let text = |key: &str| known.get(key).and_then(Value::as_str).map(str::to_owned);
        self.threads = known.get("threads").and_then(Value::as_u64);
        self.start_method = text("start_method");
        self.sharing_strategy = text("sharing_strategy");
        self
    }

    /// The value of a variable.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}
