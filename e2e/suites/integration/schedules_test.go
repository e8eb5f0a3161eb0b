package integration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// faultSchedule is a random sequence of faults on one node, with changes of objects in
// between. Its choices come from its own source.
type faultSchedule struct {
	*faultyNode
	rand  *rand.Rand
	fault faultproxy.Fault
	// steps is what was done, for the report of a failure.
	steps []string
	// deafUntil is when the last half-open connection, and the last request without an
	// answer, must have been given up.
	deafUntil time.Time
	// patient has the API server ask for long waits.
	patient bool
}

// scheduleTotals sums up schedules.
type scheduleTotals struct{ schedules, faults, requests, reads atomic.Int64 }

// TestRandomFaults runs random schedules of faults, on several nodes at once.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	seed := harness.Seed(t)
	nodes, each := harness.Scaled(8, 20), harness.Scaled(2, 100)
	total := &scheduleTotals{}
	t.Run("nodes", func(t *testing.T) {
		for i := range nodes {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				f := newFaultyNode(t, faultproxy.Options{NoWatchList: i%3 == 0})
				for j := range each {
					number := uint64(i*each + j)
					s := &faultSchedule{faultyNode: f, rand: rand.New(rand.NewPCG(seed, number))}
					s.patient = harness.Scaled(false, j == 0)
					s.run(number, total)
					if t.Failed() {
						return
					}
				}
				f.endsClean(f.leaving)
				for _, w := range f.observers {
					total.reads.Add(w.reads.whole.Load())
				}
				harness.Eventually(t, soon, func() error { return noWatches(f.proxy) }) // they end by themselves
				if err := noReflectors(f.goroutines()); err != nil {
					t.Error(err)
				}
			})
		}
	})
	played := total.schedules.Load()
	t.Logf("%d schedules, %d faults, %d requests, %d reads", played, total.faults.Load(), total.requests.Load(), total.reads.Load())
	if want := int64(harness.Scaled(13, 2000)); played < want {
		t.Errorf("%d schedules were played to their end, want %d", played, want)
	}
}

// run has one schedule play and checks its end.
func (s *faultSchedule) run(number uint64, total *scheduleTotals) {
	s.t.Helper()
	ok := false
	defer func() {
		if !ok || s.t.Failed() {
			s.t.Logf("schedule %d was: %s", number, strings.Join(s.steps, ", "))
			for _, r := range s.requests() {
				s.t.Logf("%s %s %v, during %s", r.At.Format(time.StampMilli), r.Verb, r.Object, r.Fault)
			}
			s.t.Logf("watches are open: %v", s.proxy.Watches())
		}
	}()
	s.forgetRequests()
	begin := time.Now()
	shown := s.things[s.rand.IntN(len(s.things))]
	comes := s.volume(map[string]string{"sources": shown.source()})
	var answer <-chan error
	faults := 1 + s.rand.IntN(4)
	for i := range faults {
		s.begin()
		if i == 0 {
			answer = s.publishing(comes)
			if s.leaving != nil { // whatever the fault
				s.mustUnpublish(s.leaving)
				s.leaving = nil
			}
		}
		s.last()
	}
	s.step("heal at %s", time.Now().Format(time.StampMilli))
	s.heal()
	deadline := time.Now().Add(max(0, time.Until(s.deafUntil)) + healed)
	for _, o := range s.things {
		if !o.exists || s.rand.IntN(2) == 0 {
			o.write()
		}
	}
	converges(s.t, time.Until(deadline), s.observers...)
	if err := s.answer(answer, time.Until(deadline)); err != nil { // then the kubelet tries again
		s.step("publish failed: %v", err)
		s.publishes(comes, time.Until(deadline))
	}
	if late := time.Since(deadline); late > 0 {
		s.t.Errorf("the volume was published %s too late", late)
	}
	path, content := shown.manifest()
	s.arrives(comes, path, content, max(time.Until(deadline), time.Millisecond))
	s.leaving = comes
	requests := s.requests()
	if err := checkPaced(requests, time.Since(begin), 2*faults); err != nil {
		s.t.Error(err)
	}
	total.schedules.Add(1)
	total.faults.Add(int64(faults))
	total.requests.Add(int64(len(requests)))
	ok = true
}

func (s *faultSchedule) step(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

// begin has a fault begin.
func (s *faultSchedule) begin() {
	s.t.Helper()
	s.fault = s.nextFault()
	s.step("%s", s.fault)
	if s.fault == faultproxy.TooManyRequests || s.fault == faultproxy.Unavailable {
		wait := s.retryAfter()
		s.step("Retry-After: %s", wait)
		s.proxy.SetRetryAfter(wait)
	}
	s.inject(s.fault)
	if !hitsConnections(s.fault) && s.rand.IntN(3) > 0 {
		s.step("reset")
		s.proxy.ResetConnections()
	}
}

// nextFault draws a fault. One that takes half a minute to get over is drawn less often.
func (s *faultSchedule) nextFault() faultproxy.Fault {
	if s.patient {
		return []faultproxy.Fault{faultproxy.TooManyRequests, faultproxy.Unavailable}[s.rand.IntN(2)]
	}
	all := faultproxy.All()
	f := all[s.rand.IntN(len(all))]
	if f == faultproxy.NoHeaders && s.rand.IntN(4) > 0 {
		f = faultproxy.Stalled
	}
	return f
}

// retryAfter draws what a busy server says: short waits, and what makes no sense; long
// waits in some schedules only.
func (s *faultSchedule) retryAfter() string {
	all := []string{"0", "1", "1", "2", "5", "-1", "", "soon", "0.5", "99999999999999999999", "Fri, 31 Dec 2100 23:59:59 GMT"}
	if s.patient {
		all = []string{"5", "30", "60", "86400", "2147483647"}
	}
	return all[s.rand.IntN(len(all))]
}

// last has the fault last for a while in which objects change, and perhaps end.
func (s *faultSchedule) last() {
	s.t.Helper()
	lasts := time.Duration(50+s.rand.IntN(950)) * time.Millisecond
	if s.rand.IntN(12) == 0 {
		lasts += time.Duration(s.rand.IntN(9000)) * time.Millisecond
	}
	s.step("for %s", lasts)
	during(s.t, lasts, s.change)
	if extra := currentWithin(s.fault) - healed; extra > 0 {
		s.deafUntil = time.Now().Add(extra)
	}
	if s.rand.IntN(3) == 0 {
		s.step("heal")
		s.heal()
		during(s.t, time.Duration(s.rand.IntN(500))*time.Millisecond, s.change)
	}
}

// change writes, deletes or creates an object, or does nothing.
func (s *faultSchedule) change() {
	o := s.things[s.rand.IntN(len(s.things))]
	switch s.rand.IntN(12) {
	case 0, 1, 2:
		o.write()
	case 3:
		o.delete()
	}
}
