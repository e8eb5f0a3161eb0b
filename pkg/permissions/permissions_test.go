package permissions

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer answers reviews after a time: it allows the allowed rights, and fails with err.
type apiServer struct {
	// wants are rights without which the Checker works. node is its Node.
	wants []authorizationv1.ResourceAttributes
	node  *Node

	mu      sync.Mutex
	takes   time.Duration
	allowed []string
	err     error
	asked   []string
}

func (s *apiServer) Create(
	ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, _ metav1.CreateOptions,
) (*authorizationv1.SelfSubjectAccessReview, error) {
	s.mu.Lock()
	takes := s.takes
	s.mu.Unlock()
	pause(ctx, takes, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	a := review.Spec.ResourceAttributes
	what := fmt.Sprint(a.Verb, " ", a.Resource, a.Namespace)
	s.asked = append(s.asked, what)
	review.Status.Allowed = slices.Contains(s.allowed, what)
	return review, s.err
}

// answer changes the API server's answers, and returns how often it was asked until now.
func (s *apiServer) answer(err error, allowed ...string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.allowed = err, allowed
	return len(s.asked)
}

// running returns a Checker that runs until the test ends, its signal, and its log.
func running(t *testing.T, s *apiServer) (*Checker, chan<- struct{}, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))))
	t.Cleanup(cancel)
	refused := make(chan struct{}, 1)
	c := must.Get(New(Options{Identity: "plugin", Needs: needs(), Wants: s.wants, Reviews: s, Node: s.node, Refused: refused}))(t)
	expect.Is(t, "at first", c.Ready(), errUnknown)
	go c.Run(ctx)
	return c, refused, &log
}

func needs() (all []authorizationv1.ResourceAttributes) {
	for _, resource := range []string{"configmaps", "secrets"} {
		for _, verb := range []string{"list", "watch"} {
			all = append(all, authorizationv1.ResourceAttributes{Verb: verb, Resource: resource})
		}
	}
	return all
}

// after waits until d has passed and everything is idle.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

const (
	all   = "list configmaps,watch configmaps,list secrets,watch secrets"
	lacks = "the plugin's account lacks rights in all namespaces that --identity=plugin needs: watch of secrets: grant them, or choose another identity"
)

func wantReady(t *testing.T, c *Checker, want string, missing ...string) {
	t.Helper()
	expect.Equal(t, "whether it is ready", fmt.Sprint(c.Ready()), cmp.Or(want, "<nil>"))
	expect.Equal(t, "what is missing", fmt.Sprint(c.Missing()), fmt.Sprint(missing))
}

// TestRun asks until everything is allowed, reports each problem once, and then asks every ten minutes. A failed question then changes
// nothing.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{err: errors.New("connection refused")}
		c, _, log := running(t, s)
		ready := make(chan struct{})
		go func() {
			c.Await(t.Context())
			close(ready)
		}()
		after(10 * time.Minute)
		wantReady(t, c, "ask whether the plugin may list configmaps: connection refused")
		expect.Between(t, "requests in ten minutes", s.answer(nil, "list configmaps", "watch configmaps", "list secrets"), 10, 40)
		after(2 * time.Minute)
		wantReady(t, c, lacks, "watch of secrets")
		s.answer(errors.New("not any more"))
		after(2 * time.Minute)
		wantReady(t, c, lacks, "watch of secrets")
		select {
		case <-ready:
			t.Error("Await has returned")
		default:
		}
		s.answer(nil, strings.Split(all, ",")...)
		after(2 * time.Minute)
		wantReady(t, c, "")
		<-ready
		asked := s.answer(nil, strings.Split(all, ",")...)
		after(time.Hour)
		expect.Between(t, "requests in an hour", s.answer(errors.New("not any more"))-asked, 4*5, 4*6)
		after(time.Hour)
		wantReady(t, c, "")
		s.answer(nil, "list configmaps", "watch configmaps", "list secrets")
		after(time.Hour)
		wantReady(t, c, lacks, "watch of secrets")
		if lines := strings.Count(log.String(), "\n"); lines != 4 || strings.Count(log.String(), "Not ready: the plugin can't work") != 3 {
			t.Errorf("logged\n%s", log)
		}
	})
}

// TestWithoutEvents: a right that the plugin only wants prevents nothing, and is logged as missing once, by its name.
func TestWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{wants: []authorizationv1.ResourceAttributes{{Verb: "create", Resource: "events"}}}
		s.answer(nil, strings.Split(all, ",")...)
		c, refused, log := running(t, s)
		synctest.Wait()
		wantReady(t, c, "", "create of events")
		c.Await(t.Context())
		if names := c.Rights(); !slices.Contains(names, "create of events") || len(names) != 5 {
			t.Errorf("it asks for %q", names)
		}
		after(time.Hour)
		if n := strings.Count(log.String(), `Warning: the plugin's account lacks rights: volumes work, but what needs these fails" rights=["create of events"]`); n != 1 {
			t.Errorf("warned %d times:\n%s", n, log)
		}
		// A right that it needs is named with it, and makes the plugin not ready.
		s.answer(nil, "list configmaps", "watch configmaps", "list secrets")
		refused <- struct{}{}
		synctest.Wait()
		wantReady(t, c, lacks, "watch of secrets", "create of events")
		s.answer(nil, append(strings.Split(all, ","), "create events")...)
		after(time.Minute)
		wantReady(t, c, "")
		if n := strings.Count(log.String(), "Warning: the plugin's account lacks rights"); n != 1 {
			t.Errorf("warned %d times, and it lacks nothing now:\n%s", n, log)
		}
	})
}

// TestRefused asks again after a refusal, at most every ten seconds. While a right is missing, refusals say nothing new.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{}
		s.answer(nil, strings.Split(all, ",")...)
		c, refused, _ := running(t, s)
		after(time.Minute)
		refuse := func() {
			t.Helper()
			s.answer(nil, "list configmaps", "watch configmaps", "list secrets")
			refused <- struct{}{}
			synctest.Wait()
			wantReady(t, c, lacks, "watch of secrets")
		}
		refuse()
		after(time.Hour)
		refused <- struct{}{}
		before := s.answer(nil, strings.Split(all, ",")...)
		after(2 * time.Minute)
		wantReady(t, c, "")
		expect.Equal(t, "requests after an hour of refusals", s.answer(nil, strings.Split(all, ",")...)-before, 4)
		refuse() // the pauses are short again
		s.answer(nil, strings.Split(all, ",")...)
		after(4 * time.Second)
		wantReady(t, c, "")
		asked := s.answer(nil, strings.Split(all, ",")...)
		for range 60 { // a minute of refusals
			select {
			case refused <- struct{}{}:
			default:
			}
			after(time.Second)
		}
		expect.Between(t, "requests in a minute of refusals", s.answer(nil)-asked, 4*5, 4*7)
	})
}

// TestSlowServer: an API server may take seconds for an answer. If it never answers, the Checker gives up and asks again.
func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{takes: time.Hour}
		s.answer(nil, strings.Split(all, ",")...)
		c, _, _ := running(t, s)
		after(time.Minute)
		wantReady(t, c, "ask whether the plugin may list configmaps: context deadline exceeded")
		s.mu.Lock()
		s.takes = 2 * time.Second
		s.mu.Unlock()
		after(2 * time.Minute)
		wantReady(t, c, "")
	})
}
