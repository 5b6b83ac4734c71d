//! Errors of agents as Python exceptions. Programs tell them apart by class and kind, never by their text.

use forebay_agent::host::error::AgentError;
use pyo3::{
    create_exception,
    exceptions::{PyConnectionError, PyConnectionRefusedError, PyTimeoutError},
    prelude::*,
};

create_exception!(
    forebay._core,
    AgentRefusedError,
    PyConnectionRefusedError,
    "The agent refused a request. `kind` is `invalid`, `other_version`, `taken`, `exhausted`, `failed` or `passed`."
);
create_exception!(
    forebay._core,
    AgentLostError,
    PyConnectionError,
    "The agent ended, or closed the connection."
);
create_exception!(
    forebay._core,
    AgentSilentError,
    PyTimeoutError,
    "The agent runs, and does not answer."
);

/// Converts an agent's error to its exception. An agent that could not be started or reached is a `ConnectionError`.
pub(crate) fn to_python(error: AgentError) -> PyErr {
    match error {
        AgentError::Refused(refusal) => {
            let raised = AgentRefusedError::new_err(refusal.why);
            Python::attach(|py| match raised.value(py).setattr("kind", refusal.kind.name()) {
                Ok(()) => raised,
                Err(error) => error,
            })
        }
        silent @ AgentError::Silent { .. } => AgentSilentError::new_err(silent.to_string()),
        lost @ AgentError::Lost(_) => AgentLostError::new_err(lost.to_string()),
        other => PyConnectionError::new_err(other.to_string()),
    }
}
