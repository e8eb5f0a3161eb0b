package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// fleetModel is a fleet of pods for one run of the command, with all that happens to fleets. Its decisions come from a seed.
type fleetModel struct {
	*fakeRollout
	*rand.Rand
	mu sync.Mutex
	// isBad means that each pod that takes the change becomes unhealthy, in the way that fails says, after delay.
	isBad bool
	fails string
	delay time.Duration
	// ailing are the pods that ail because of the change.
	ailing map[string]bool
	// quiet means that no request fails and nothing happens to pods.
	quiet bool
	// replaced counts the pods that were replaced, and faults the requests that have failed in a row.
	replaced, faults int
}

func newFleetModel(seed uint64) *fleetModel {
	m := &fleetModel{Rand: rand.New(rand.NewPCG(seed, 7)), ailing: map[string]bool{}}
	pods := 5 + m.IntN(40)
	if m.IntN(2) == 0 {
		m.fakeRollout = newFakeCanary(pods)
	} else {
		m.fakeRollout = newFakeRollout(pods, "app")
	}
	m.twoNodes = m.IntN(3) == 0
	m.isBad, m.quiet = m.IntN(2) == 0, m.IntN(4) == 0
	m.fails = []string{"not ready", "crashes", "is replaced after a crash", "never ready"}[m.IntN(4)]
	m.delay = time.Duration(3+m.IntN(40)) * time.Second
	for _, name := range slices.Sorted(maps.Keys(m.pods)) {
		if m.IntN(10) == 0 && !m.quiet {
			m.pods[name].ready = false // it ails before the command
		}
	}
	m.sick = func(_ *fakeRollout, name string, p *fakePod) { m.ail(name, p) }
	return m
}

func (m *fleetModel) ail(name string, p *fakePod) {
	since := time.Since(p.took)
	if m.ailing[name] && p.data["app"] != "new" { // the change was taken back
		p.ready = true
		delete(m.ailing, name)
	}
	if !m.isBad || p.data["app"] != "new" || since < m.delay {
		return
	}
	m.ailing[name] = true
	switch m.fails {
	case "crashes":
		p.ready, p.restarts = since.Seconds() < 90 && int(since.Seconds())%20 < 5, max(p.restarts, 1+int32((since-m.delay).Seconds())/20)
	case "is replaced after a crash":
		if p.ready, p.restarts = false, max(p.restarts, 1); since > m.delay+15*time.Second {
			m.replace(name, false)
		}
	default:
		p.ready = false
	}
}

// replace has a controller replace a pod. The new one shows what its place and the share say, or the newest held version.
func (m *fleetModel) replace(name string, ready bool) {
	delete(m.pods, name)
	m.replaced++
	next := fmt.Sprint("new-", m.replaced)
	o := m.objects["app"]
	if o == nil {
		return
	}
	p := &fakePod{data: map[string]string{"app": o.data}, version: map[string]string{"app": o.state.ResourceVersion}, ready: ready, took: time.Now(), created: time.Now()}
	if m.isCanary && volume.RolloutPlace(types.UID(next)) > o.state.percent() {
		p.data["app"] = ""
	}
	m.pods[next] = p
}

// happens lets something happen to the fleet that is no fault of the change.
func (m *fleetModel) happens() {
	if m.quiet {
		return
	}
	if m.twoNodes && !m.isLost && m.IntN(60) == 0 {
		m.loseNode(time.Duration(20+m.IntN(120)) * time.Second)
	}
	for _, name := range slices.Sorted(maps.Keys(m.pods)) {
		p := m.pods[name]
		switch n := m.IntN(1500); {
		case n == 0 && p.ready: // a drain, a scale-down, a rolling update
			m.replace(name, true)
		case n == 1 && p.ready && !(m.isBad && p.data["app"] == "new"): // a flap
			p.ready = false
			m.later(6*time.Second, func() { p.ready = true })
		}
	}
}

// loseNode makes the node m not ready for a while. Its pods count as not ready until the kubelet is back.
func (m *fleetModel) loseNode(length time.Duration) {
	m.isLost = true
	for name, p := range m.pods {
		if was := p.ready; m.nodeOf(name) == "m" && was {
			p.ready = false
			m.later(length+4*time.Second, func() { p.ready = true })
		}
	}
	m.later(length, func() { m.isLost = false })
}

// request returns an error now and then, but not forever.
func (m *fleetModel) request() error {
	if m.quiet || m.IntN(12) > 0 || m.faults > 3 {
		m.faults = 0
		return nil
	}
	m.faults++
	return errFault
}

// answered returns the answer to a request, which may fail.
func answered[T any](m *fleetModel, request func() (T, error)) (answer T, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.request(); err != nil {
		return answer, err
	}
	return request()
}

func (m *fleetModel) model() *roller {
	r := m.roller()
	calls := r.calls
	r.calls.state = func(ctx context.Context, object fleet.Object) (*rolloutState, error) {
		return answered(m, func() (*rolloutState, error) { return calls.state(ctx, object) })
	}
	r.calls.set = func(ctx context.Context, object fleet.Object, from *rolloutState, share string, after *string) (*rolloutState, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		err := m.request()
		if err != nil && m.IntN(2) == 0 {
			return nil, err
		}
		state, setErr := calls.set(ctx, object, from, share, after)
		if setErr == nil && err != nil { // only the answer is lost
			return nil, err
		}
		return state, setErr
	}
	r.calls.event = func(ctx context.Context, object fleet.Object, version status.Version, reason, text string) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		return calls.event(ctx, object, version, reason, text)
	}
	r.calls.survey = func(ctx context.Context, objects ...fleet.Object) (*fleet.Survey, error) {
		m.mu.Lock()
		takes := time.Duration(m.IntN(3000)) * time.Millisecond
		m.mu.Unlock()
		pause(ctx, takes)
		return answered(m, func() (*fleet.Survey, error) {
			m.happens()
			return calls.survey(ctx, objects...)
		})
	}
	r.calls.pods = func(ctx context.Context, namespace string) ([]corev1.Pod, error) {
		return answered(m, func() ([]corev1.Pod, error) {
			m.happens()
			return calls.pods(ctx, namespace)
		})
	}
	return r
}

// TestRolloutModel: whatever happens to the fleet and to the requests, the command never says done while the change is bad, never gives a bad
// change to a second step, never stops a good one for what is no fault of it, and always ends.
func TestRolloutModel(t *testing.T) {
	ends := map[string]int{}
	for _, seed := range dice.Seeds(t, 40) {
		synctest.Test(t, func(t *testing.T) { runModel(t, seed, ends) })
	}
	for _, end := range []string{"good: 0", "bad: 1"} {
		if ends[end] == 0 {
			t.Errorf("no run has ended with %s: %v", end, ends)
		}
	}
}

// laterSteps returns how many steps after the first the commands have taken. A step of which a command says that nobody tried it makes no bad
// change known, so the next one follows.
func (m *fleetModel) laterSteps() (n int) {
	for _, share := range []string{"50%", "100%"} {
		if slices.Contains(m.sets, share) {
			n++
		}
	}
	return n - strings.Count(strings.Join(m.out, "\n"), "no pod that was well before has the change")
}

func runModel(t *testing.T, seed uint64, ends map[string]int) {
	m := newFleetModel(seed)
	r, began := m.model(), time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Hour)
	defer cancel()
	second, isTwice := make(chan struct{}), m.IntN(8) == 0
	if isTwice {
		other := m.model()
		other.calls.say, other.calls.warn = func(string, ...any) {}, func(error) {}
		later := time.Duration(10+len(m.pods)) * time.Second
		go func() {
			defer close(second)
			pause(ctx, later)
			_ = other.roll(ctx, []rolloutStep{{percent: 10}, {percent: 50}, {percent: 100}})
		}()
	} else {
		close(second)
	}
	err := r.roll(ctx, []rolloutStep{{percent: 10}, {percent: 50}, {percent: 100}})
	<-second
	what := "good"
	if m.isBad {
		what = "bad"
	}
	ends[fmt.Sprint(what, ": ", exitStatus(err))]++
	fail := func(text string) {
		t.Errorf("seed %d: %s: %v; the change is %s (%s after %s), canary %t; %s\n%s", seed, text, err, what, m.fails, m.delay, m.isCanary, m.summary(), strings.Join(m.out, "\n"))
	}
	isOthers := err != nil && strings.Contains(err.Error(), "somebody else has changed")
	switch {
	case ctx.Err() != nil || time.Since(began) > 5*time.Hour:
		fail("it does not end")
	case m.isBad && err == nil:
		fail("done with a bad change")
	case m.isBad && m.laterSteps() > 0:
		fail("a bad change reached a second step")
	case !m.isBad && exitStatus(err) == no && !isOthers && !strings.Contains(err.Error(), "stays at"):
		fail("a good change was stopped")
	case !m.isBad && m.isCanary && !isTwice && // the second command does not know which pods ailed before
		slices.Contains(m.sets, "0%"):
		fail("a good canary was taken back")
	}
}
