package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// faultyNode is a node with three objects in two volumes that are watched.
type faultyNode struct {
	*proxied
	things    []*thing
	observers []*observer
	// leaving is a volume that is still to be unpublished; nil for none.
	leaving *harness.Volume
}

func newFaultyNode(t *testing.T, o faultproxy.Options, args ...string) *faultyNode {
	t.Helper()
	return newProxied(t, o, args...).faultyNode()
}

// faultyNode makes the objects and volumes.
func (n *proxied) faultyNode() *faultyNode {
	n.t.Helper()
	f := &faultyNode{proxied: n}
	f.things = []*thing{f.newThing("configMap", "app"), f.newThing("secret", "db"), f.newThing("configMap", "other")}
	f.observers = []*observer{f.watch(f.things[0], f.things[1]), f.watch(f.things[2])}
	return f
}

// currentWithin is how long the files may take to be current after a fault.
func currentWithin(f faultproxy.Fault) time.Duration {
	switch f {
	case faultproxy.HalfOpen:
		return noticed + healed
	case faultproxy.NoHeaders:
		return answered + healed
	}
	return healed
}

// blocks tells that nothing can be learnt of an object during the fault.
func blocks(f faultproxy.Fault) bool {
	return hitsConnections(f) || slices.Contains([]faultproxy.Fault{
		faultproxy.TooManyRequests, faultproxy.ServerError, faultproxy.BadGateway, faultproxy.TooLarge,
		faultproxy.Unavailable, faultproxy.Unauthorized, faultproxy.Stalled, faultproxy.NoHeaders,
	}, f)
}

// hitsConnections tells that the fault comes over the watches that are open, by itself,
// and that no request arrives during it.
func hitsConnections(f faultproxy.Fault) bool {
	return slices.Contains([]faultproxy.Fault{faultproxy.Refused, faultproxy.Cut, faultproxy.HalfOpen, faultproxy.Partition}, f)
}

// holdsUpAll tells that the plugin, once it has met the fault, sends one request at a time, with pauses. They may all be for the same
// object.
func holdsUpAll(f faultproxy.Fault) bool {
	return f == faultproxy.Unauthorized || f == faultproxy.Unavailable
}

// TestBadAPIServer has each fault alone, on a node of its own: files stay readable, publishes wait and then fail in a way that
// the kubelet repeats, unpublishes work, and everything is current soon after. Some come while the plugin starts, and some
// where it asks at each resync, of a second here.
func TestBadAPIServer(t *testing.T) {
	t.Parallel()
	rights := componentAccount(t, "get")
	const starts, resyncs = ", the plugin starts", ", without watches"
	for how, faults := range map[string][]faultproxy.Fault{
		"":      faultproxy.All(),
		starts:  {faultproxy.Refused, faultproxy.Cut, faultproxy.HalfOpen, faultproxy.Partition, faultproxy.ServerError},
		resyncs: {faultproxy.Refused, faultproxy.HalfOpen, faultproxy.TooManyRequests, faultproxy.ServerError, faultproxy.Stalled},
	} {
		for _, fault := range faults {
			t.Run(fault.String()+how, func(t *testing.T) {
				t.Parallel()
				const wait = "--publish-wait=3s"
				if how == resyncs {
					newProxiedAs(t, rights, faultproxy.Options{}, "--change-detection=Get", "--resync-interval=1s", wait).faultyNode().suffers(fault, false, false)
				} else {
					newFaultyNode(t, faultproxy.Options{}, wait).suffers(fault, how == starts, true)
				}
			})
		}
	}
}

func (f *faultyNode) suffers(fault faultproxy.Fault, starts, watches bool) {
	t := f.t
	f.configMap("late", map[string]string{"key": "late"})
	goes, comes := f.short("other"), f.short("late")
	f.publishes(goes, soon)
	for _, o := range f.things {
		o.write() // so that there is something older to go back to
	}
	converges(t, soon, f.observers...)
	if starts {
		f.mustKill()
	}
	f.forgetRequests()
	begin := time.Now()
	f.inject(fault)
	if !hitsConnections(fault) && watches {
		f.proxy.ResetConnections() // so that the watches have to be opened again
	}
	for _, o := range f.things {
		o.write()
	}
	if starts {
		f.mustStart()
		f.mustPublish(f.observers[0].volume) // as the kubelet does after its own restart
	}
	f.publishDuring(fault, begin, comes)
	f.mustUnpublish(goes)
	if !hitsConnections(fault) && watches && !starts {
		things := len(f.things)
		if holdsUpAll(fault) {
			things = 1
		}
		f.asked(things) // so that what the fault answers with has come
	}
	f.things[0].delete()
	f.things[0].write()
	f.heal()
	took := f.recovers(currentWithin(fault), comes)
	f.wantContent(comes, "key", "late")
	lasted := time.Since(begin)
	requests := f.requests()
	// Each of four objects is asked for once a second. After a failure its pauses begin at a fraction of one and double, which
	// adds four requests to each, and four to one for which a publish waits.
	if most := 4*(int(lasted/time.Second)+2+4) + 4; !watches && len(requests) > most {
		t.Errorf("%d requests in %s, want %d at most", len(requests), lasted, most)
	}
	if err := checkPaced(requests, lasted, 0); err != nil && watches && !starts {
		t.Error(err)
	}
	t.Logf("current %s after the fault; %d requests in %s", took, len(requests), lasted)
	f.endsClean(comes)
}

// TestStaleAnswersAfterARestart has a plugin that knows nothing but what volumes tell hear of
// states older than the files show, by watches and by lists.
func TestStaleAnswersAfterARestart(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]faultproxy.Options{"watch": {}, "list": {NoWatchList: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaultyNode(t, o, anyStatusPort)
			for _, o := range f.things {
				o.write()
			}
			converges(t, soon, f.observers...)
			f.wantOlderAnswers(false)
			f.mustKill()
			f.inject(faultproxy.Stale)
			f.forgetRequests()
			f.mustStart()
			f.asked(len(f.things))
			for _, w := range f.observers {
				f.hasCondition(w.volume, "older than what the files show")
			}
			converges(t, 0, f.observers...)
			f.wantOlderAnswers(true)
			if out, _, _ := f.runStatus(); strings.Count(out, "if etcd was restored with a bumped revision, write the object again") != len(f.observers) {
				t.Errorf("status prints\n%s", out)
			}
			replaced := f.short("other")
			f.mustPublish(replaced) // a new pod has nothing to go back from
			for path, value := range f.things[2].data(1) {
				f.wantContent(replaced, path, value)
			}
			f.heal()
			f.things[0].write()
			converges(t, healed, f.observers...)
			f.wantOlderAnswers(false)
			f.endsClean(replaced)
		})
	}
}

// wantOlderAnswers waits until the status says of all shown objects that the API server answers with an older version, or of none.
func (f *faultyNode) wantOlderAnswers(want bool) {
	f.t.Helper()
	harness.Eventually(f.t, healed, func() error {
		report, err := f.report()
		if err != nil {
			return err
		}
		for i := range report.Volumes {
			for _, o := range report.Volumes[i].Objects {
				if isOlder := o.OlderAnswer != nil; o.Shown == nil || isOlder != want {
					return fmt.Errorf("%s %s: an older answer: %t, want %t", o.Kind, o.Name, isOlder, want)
				}
				if a := o.OlderAnswer; a != nil && (a.Known != o.Shown.ResourceVersion || a.Object == nil || a.Object.UID != o.Shown.UID) {
					return fmt.Errorf("%s %s at %s: %+v", o.Kind, o.Name, o.Shown.ResourceVersion, a)
				}
			}
		}
		return nil
	})
}

// asked waits until watches of so many things have been tried since forgetRequests.
func (f *faultyNode) asked(things int) {
	f.t.Helper()
	harness.Eventually(f.t, soon, func() error {
		rounds, never := roundsOf(f.requests()), []string{}
		for _, o := range f.things {
			if c := rounds[o.resource()]; c.initial+c.goingOn == 0 {
				never = append(never, o.kind+" "+o.name)
			}
		}
		if asked := len(f.things) - len(never); asked < things {
			return fmt.Errorf("%d things were asked for, want %d; not asked for: %s", asked, things, strings.Join(never, ", "))
		}
		return nil
	})
}

// resource returns how the proxy calls a thing.
func (o *thing) resource() faultproxy.Object {
	return faultproxy.Object{Resource: strings.ToLower(o.kind) + "s", Namespace: o.node.namespace, Name: o.name}
}

// recovers waits until all files are current and the volumes that come are published, all
// within one time, and returns how long the files took.
func (f *faultyNode) recovers(within time.Duration, comes ...*harness.Volume) time.Duration {
	f.t.Helper()
	begin := time.Now()
	took := converges(f.t, within, f.observers...)
	for _, v := range comes {
		f.publishes(v, max(0, time.Until(begin.Add(within))))
	}
	if all := time.Since(begin); all > within {
		f.t.Errorf("current and published after %s, want %s at most", all, within)
	}
	return took
}

// publishDuring publishes a volume whose object nobody has asked for yet, during a fault that began at since.
func (f *faultyNode) publishDuring(fault faultproxy.Fault, since time.Time, v *harness.Volume) {
	f.t.Helper()
	if !blocks(fault) {
		f.publishes(v, soon)
		return
	}
	begin := time.Now()
	err := f.Publish(f.t.Context(), v)
	// Refusals that have lasted for 5 s count as an answer. The kubelet repeats on that code, too.
	if refused := fault == faultproxy.Unauthorized && time.Since(since) >= 5*time.Second; !refused || status.Code(err) != codes.PermissionDenied {
		wantStatus(f.t, err, codes.Unavailable)
	}
	if took := time.Since(begin); took < 3*time.Second {
		f.t.Errorf("the publish gave up after %s, want 3 s", took)
	}
}

// endsClean unpublishes everything and checks that nothing is left.
func (f *faultyNode) endsClean(also ...*harness.Volume) {
	f.t.Helper()
	for _, w := range f.observers {
		w.stop()
		also = append(also, w.volume)
	}
	for _, v := range also {
		f.mustUnpublish(v)
	}
	f.wantNothingLeft()
	harness.Eventually(f.t, soon, func() error { return noWatches(f.proxy) })
}
