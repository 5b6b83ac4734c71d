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
        clerk::Event,
        limits::REQUEST_BYTES_MAX,
        protocol::{Reply, Request},
        receiver::Queue,
    },
};

/// Binds the socket and starts serving.
pub(crate) fn start(dir: &Path, events: Sender<Event>, queue: Queue) -> Result<(), AgentError> {
    let path = dir.join("control.sock");
    let listener = UnixListener::bind(&path).map_err(io_error("bind", &path))?;
    let accept = move || {
        for stream in listener.incoming().flatten() {
            if sockopt::socket_peercred(&stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid()) {
                let (events, queue) = (events.clone(), queue.clone());
                // Without a thread the connection closes, and the command says that nobody answered.
                let _ = thread::Builder::new()
                    .name("connection".into())
                    .spawn(move || converse(&stream, &events, &queue));
            }
        }
    };
    thread::Builder::new()
        .name("control".into())
        .spawn(accept)
        .map_err(io_error("start a thread for", &path))?;
    Ok(())
}

fn converse(stream: &UnixStream, events: &Sender<Event>, queue: &Queue) {
    let mut run = None;
    let mut requests = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match requests.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
        let reply = match serde_json::from_str::<Request>(&line) {
            Ok(request) => ask(request, run, events, queue),
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
    let _ = events.send(Event::Disconnected { run });
}

fn ask(request: Request, run: Option<u64>, events: &Sender<Event>, queue: &Queue) -> Option<Reply> {
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
    events.send(Event::Asked { request, run, reply }).ok()?;
    answer.recv().ok()
}
