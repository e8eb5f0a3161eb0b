package integration

import (
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestPluginStartsWithoutAPIServer has the plugin killed and started again while the
// API server is out of reach: it serves what is mounted, and follows once it can.
func TestPluginStartsWithoutAPIServer(t *testing.T) {
	t.Parallel()
	for _, fault := range []faultproxy.Fault{
		faultproxy.Refused, faultproxy.Cut, faultproxy.HalfOpen, faultproxy.Partition, faultproxy.ServerError,
	} {
		t.Run(fault.String(), func(t *testing.T) {
			t.Parallel()
			f := newFaultyNode(t, faultproxy.Options{}, "--publish-wait=3s")
			goes, comes := f.short("other"), f.short("other")
			f.publishes(goes, soon)
			f.mustKill()
			f.inject(fault)
			for _, o := range f.things {
				o.write()
			}
			f.mustStart()
			f.mustPublish(f.observers[0].volume) // as the kubelet does after its own restart
			f.publishDuring(fault, comes)
			f.mustUnpublish(goes)
			f.heal()
			took := f.recovers(currentWithin(fault), comes)
			t.Logf("current %s after the fault", took)
			f.endsClean(comes)
		})
	}
}

// TestStaleAnswersAfterARestart has a plugin that knows nothing but what volumes tell hear of
// states older than the files show, by watches and by lists.
func TestStaleAnswersAfterARestart(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]faultproxy.Options{"watch": {}, "list": {NoWatchList: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaultyNode(t, o)
			for _, o := range f.things {
				o.write()
			}
			converges(t, soon, f.observers...)
			f.mustKill()
			f.inject(faultproxy.Stale)
			f.forgetRequests()
			f.mustStart()
			f.asked(1)
			for _, w := range f.observers {
				f.hasCondition(w.volume, "older than what the files show")
			}
			converges(t, 0, f.observers...)
			f.heal()
			f.things[0].write()
			converges(t, healed, f.observers...)
			f.endsClean()
		})
	}
}

// TestLongPartition has the API server be away for minutes in its long form, and seconds
// in the short one, in each way in which it or the network can: it is not asked for more
// often than the back-off allows, nor are connections made.
func TestLongPartition(t *testing.T) {
	t.Parallel()
	lasts := harness.Scaled(12*time.Second, 4*time.Minute)
	for _, fault := range []faultproxy.Fault{
		faultproxy.Partition, faultproxy.HalfOpen, faultproxy.Refused, faultproxy.Cut,
		faultproxy.ServerError, faultproxy.TooManyRequests, faultproxy.Gone,
	} {
		t.Run(fault.String(), func(t *testing.T) {
			t.Parallel()
			// A watch that begins with the state is not refused as Gone, one after a list is.
			f := newFaultyNode(t, faultproxy.Options{NoWatchList: fault == faultproxy.Gone})
			f.forgetRequests()
			_, connectionsBefore := f.proxy.Connections()
			begin := time.Now()
			f.inject(fault)
			if !hitsConnections(fault) {
				f.proxy.ResetConnections() // so that the watches have to be opened again
			}
			during(t, lasts, f.things[0].write)
			switch {
			case fault == faultproxy.Gone:
				f.asked(4)
			case !hitsConnections(fault):
				f.probed(4) // one object at a time
			}
			f.heal()
			took := converges(t, currentWithin(fault), f.observers...)
			requests := f.requests()
			lasted := time.Since(begin)
			if err := checkPaced(requests, lasted); err != nil {
				t.Error(err)
			}
			_, connections := f.proxy.Connections()
			connections -= connectionsBefore
			// Each request that fails may have made one, a watch and a list in each round.
			if most := 2 * len(f.things) * (pausesWithin(lasted) + 1); connections > most {
				t.Errorf("%d connections were tried in %s, want %d at most", connections, lasted, most)
			}
			t.Logf("current %s after %s; %d requests, %d connections", took, lasts, len(requests), connections)
			f.endsClean()
		})
	}
}

// TestTooLargeResourceVersionAfterARestart has a plugin that starts again, and a pod with it, while
// the API server's cache is behind. The publish waits for it, and then is served; what
// is mounted follows. (That a watch begins again after its object was idle, and then
// meets this, is a unit test of pkg/manager: it takes minutes.)
func TestTooLargeResourceVersionAfterARestart(t *testing.T) {
	t.Parallel()
	f := newFaultyNode(t, faultproxy.Options{})
	f.mustKill()
	f.inject(faultproxy.TooLarge)
	f.mustStart()
	f.things[2].write()
	v := f.short("other")
	answer := f.publishing(v)
	f.stillWaitingFor(answer, 4*time.Second)
	f.heal()
	if err := f.answer(answer, healed); err != nil {
		t.Errorf("publish: %v", err)
	}
	for _, key := range f.things[2].keys() {
		f.wantContent(v, key, f.things[2].state.String())
	}
	converges(t, healed, f.observers...)
	f.endsClean(v)
}

// TestBadAPIServerWithoutWatches has the faults of requests where the plugin asks at
// each resync. The files of a Live volume may then be a resync, of a second here, behind.
func TestBadAPIServerWithoutWatches(t *testing.T) {
	t.Parallel()
	rights := componentAccount(t, "get")
	for _, fault := range []faultproxy.Fault{
		faultproxy.Refused, faultproxy.HalfOpen, faultproxy.TooManyRequests, faultproxy.ServerError, faultproxy.Slow,
	} {
		t.Run(fault.String(), func(t *testing.T) {
			t.Parallel()
			f := newProxiedAs(t, rights, faultproxy.Options{}, "--change-detection=Get", "--resync-interval=1s", "--publish-wait=3s").faultyNode()
			goes, comes := f.short("other"), f.short("other")
			f.publishes(goes, soon)
			f.forgetRequests()
			begin := time.Now()
			f.inject(fault)
			for _, o := range f.things {
				o.write()
			}
			f.publishDuring(fault, comes)
			f.mustUnpublish(goes)
			f.heal()
			took := f.recovers(currentWithin(fault), comes)
			lasted := time.Since(begin)
			requests := f.requests()
			// Each volume asks for each of its objects once a second, and a publish with pauses.
			if most := 5*int(lasted/time.Second) + 10; len(requests) > most {
				t.Errorf("%d requests in %s, want %d at most", len(requests), lasted, most)
			}
			t.Logf("current %s after the fault; %d requests in %s", took, len(requests), lasted)
			f.endsClean(comes)
		})
	}
}
