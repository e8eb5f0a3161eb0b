package suite

import "testing"

// A change that is made while the plugin is restarting comes to a volume that is
// rewritten in place, through a subPath mount too, and never to one that is pinned.
func TestPoliciesOverRestart(t *testing.T) {
	t.Parallel()
	node := takeNode(t)
	n := newNamespace(t)
	n.createSecret("login", object{"user": canary("one")})
	spec := newPod("reader",
		refvol("pinned", attributes{"secret": "login", "updatePolicy": "Pinned"}),
		refvol("in-place", attributes{"secret": "login", "writeStrategy": "InPlace"}),
		refvol("live", attributes{"secret": "login"}))
	onNode(spec, node)
	pinned, inPlace := mountDir+"pinned/user", mountKey(spec, "in-place", "user")
	p := n.start(spec)
	change := func(text string) {
		t.Helper()
		w := p.await(inPlace, text, 2*podTimeout)
		n.updateSecret("login", object{"user": text})
		got := w.arrive()
		if got.Failed > 0 {
			t.Errorf("%q: %d of %d reads failed: %s", text, got.Failed, got.Reads, got.Error)
		}
		p.probe("await", mountDir+"live/user", text, podTimeout.String())
		if err := p.hasText(t.Context(), "probe", pinned, canary("one")); err != nil {
			t.Error(err)
		}
	}
	change(canary("two"))

	plugin := n.mustPlugin(t, node)
	w := p.await(inPlace, canary("three"), 2*podTimeout)
	deletePlugin(t, n, nil, plugin)
	n.updateSecret("login", object{"user": canary("three")})
	back := n.awaitPlugin(t.Context(), t, node)
	late := w.arrive().at.Sub(back)
	t.Logf("the change came %s after the plugin was ready", milliseconds(late))
	if late > restartLimit {
		t.Errorf("the change came %s after the plugin was ready", late)
	}
	if err := p.hasText(t.Context(), "probe", pinned, canary("one")); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	change("four")
}
