package integration

import (
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
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

// TestBadAPIServerWithoutWatches has the faults of requests where the plugin asks at
// each resync. The files of a Live volume may then be a resync, of a second here, behind.
func TestBadAPIServerWithoutWatches(t *testing.T) {
	t.Parallel()
	rights := componentAccount(t, "get")
	for _, fault := range []faultproxy.Fault{
		faultproxy.Refused, faultproxy.HalfOpen, faultproxy.TooManyRequests, faultproxy.ServerError, faultproxy.Stalled,
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
