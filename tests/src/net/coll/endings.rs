//! Heads that leave, and those that never come together.

use super::heads::{What, gather, heads};
use crate::net::until;
use oxccl::net::coll::CollNet;
use oxccl::{DataType, RedOp};
use std::sync::Arc;

pub fn head_leaves(net: &Arc<dyn CollNet>) {
    let device = net.properties(0).expect("device 0").name;
    let what = What::all_reduce(1000, DataType::U64, RedOp::Sum);
    // Any of them: one of the heads may play the network.
    for leaver in 0..3 {
        let mut ends = heads(net, 3);
        drop(ends.remove(leaver));
        for head in (0..3).filter(|head| *head != leaver) {
            let end = &mut ends[if head > leaver { head - 1 } else { head }];
            let error = until("the error of an operation that lacks a head", || {
                // Its beginning may be the first to fail.
                if end.under_way() == 0
                    && let Err(error) = end.post(&what, &[1; 8000], 8000)
                {
                    return Some(error);
                }
                end.oldest().err()
            });
            let text = error.to_string();
            assert!(text.contains(&device) && text.contains(&format!("head {head} of 3")), "{text}");
            // The communicator stays broken.
            assert_eq!(end.post(&what, &[1; 8000], 8000), Err(error));
            // Until another head leaves, only head 0 may know that head 1 or 2 has.
            if leaver != 0 {
                break;
            }
        }
    }
}

pub fn no_handle(net: &Arc<dyn CollNet>) {
    let (mut listeners, handles) = gather(net, 1);
    let listener = listeners.pop().expect("there is one");
    let error = listener.join(&handles, 1).err().expect("there is no head 1");
    assert!(error.to_string().contains("head 1 of 1"), "{error}");
}

pub fn given_up(net: &Arc<dyn CollNet>) {
    let device = net.properties(0).expect("device 0").name;
    drop(net.listen(0).expect("device 0 listens"));
    let (mut listeners, handles) = gather(net, 2);
    let mut joining = listeners.remove(0).join(&handles, 0).expect("there is a handle");
    for _ in 0..10 {
        match joining.poll_join() {
            Ok(None) => {}
            Ok(Some(_)) => panic!("head 1 has not come"),
            Err(error) => assert!(error.to_string().contains(&device), "{error}"),
        }
    }
    drop(joining);
    drop(listeners);
    // Nothing of it is in the way of others.
    drop(heads(net, 2));
}
