//! Serves the control socket. Each connection has a thread, and is the lease of the run that it joined.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::mpsc::{Sender, channel},
    thread,
};

use rustix::net::sockopt;

use crate::{
    host::error::{AgentError, io_error},
    tiering::{
        handoff::HandoffQueue,
        limits::REQUEST_BYTES_MAX,
        protocol::{Reply, Request},
    },
};

/// Message from a command's connection to the event loop.
#[derive(Debug)]
pub(crate) enum CommandEvent {
    /// A command sends a request.
    Asked {
        request: Request,
        /// Number of the run that the connection has joined.
        run: Option<u64>,
        /// Channel for the answer.
        reply: Sender<Reply>,
    },
    /// A command's connection has closed.
    Disconnected {
        /// Number of the run that the connection had joined.
        run: Option<u64>,
    },
}

/// Binds the socket and starts serving. Each connection passes its messages to `deliver`.
pub(crate) fn start(dir: &Path, queue: HandoffQueue, deliver: impl Fn(CommandEvent) + Clone + Send + 'static) -> Result<(), AgentError> {
    let path = dir.join("control.sock");
    let listener = UnixListener::bind(&path).map_err(io_error("bind", &path))?;
    let accept = move || {
        for stream in listener.incoming().flatten() {
            if sockopt::socket_peercred(&stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid()) {
                let (deliver, queue) = (deliver.clone(), queue.clone());
                // Without a thread the connection closes, and the command says that nobody answered.
                let _ = thread::Builder::new()
                    .name("connection".into())
                    .spawn(move || converse(&stream, &deliver, &queue));
            }
        }
    };
    thread::Builder::new()
        .name("control".into())
        .spawn(accept)
        .map_err(io_error("start a thread for", &path))?;
    Ok(())
}

fn converse(stream: &UnixStream, deliver: &impl Fn(CommandEvent), queue: &HandoffQueue) {
    let mut run = None;
    let mut requests = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match requests.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
        let reply = match serde_json::from_str::<Request>(&line) {
            Ok(request) => ask(request, run, deliver, queue),
            Err(error) => Some(Reply::Refused {
                why: format!("the request could not be read: {error}"),
            }),
        };
        let Some(reply) = reply else { break };
        if let Reply::Joined { run: joined, .. } = &reply {
            run = Some(*joined);
        }
        let Ok(mut answer) = serde_json::to_vec(&reply) else { break };
        answer.push(b'\n');
        let mut to = stream;
        if to.write_all(&answer).is_err() {
            break;
        }
    }
    deliver(CommandEvent::Disconnected { run });
}

fn ask(request: Request, run: Option<u64>, deliver: &impl Fn(CommandEvent), queue: &HandoffQueue) -> Option<Reply> {
    if run.is_some() && matches!(request, Request::Join { .. }) {
        return Some(Reply::Refused {
            why: "this connection has joined a run already".into(),
        });
    }
    // What programs opened before is counted in the answer; and what the last of them opened just before it ended is copied, too.
    if matches!(request, Request::Status | Request::Leave) {
        queue.wait_until_taken();
    }
    let (reply, answer) = channel();
    deliver(CommandEvent::Asked { request, run, reply });
    answer.recv().ok()
}
