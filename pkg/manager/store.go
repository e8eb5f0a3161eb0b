package manager

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/volume"
)

// ChangeDetection is how a Manager learns of changes.
type ChangeDetection string

// The ways, which are those of the kubelet.
const (
	// Watch keeps a watch of each object open. Changes arrive at once.
	Watch ChangeDetection = "Watch"
	// Cache keeps an object for the time that the node's annotation
	// node.alpha.kubernetes.io/ttl says. A Refresh after that asks again. The API server
	// may answer from its cache.
	Cache ChangeDetection = "Cache"
	// Get asks for the present state at each Refresh.
	Get ChangeDetection = "Get"
)

// store is a way to know objects. References are counted elsewhere: see references.
type store interface {
	// subscribe sets the function that hears of changes of later objects.
	subscribe(fn func(volume.Account, volume.Ref))
	// newObject returns the object of k, of which nothing is known yet, or nil for a kind
	// that the store can't read. pod is the first one that references it.
	newObject(k key, pod types.UID) object
	// renewed says that there is a new credential of an account.
	renewed(account volume.Account)
	// shutdown waits for every goroutine of the objects. The caller has closed all objects.
	shutdown()
}

// object is what a store knows of one object that pods reference. Its methods are
// safe for concurrent use; none waits for the network.
type object interface {
	// start is called after the first reference, verify after each other one. newPod says
	// whether that is the first reference of its pod.
	start()
	verify(newPod bool)
	// get returns what is known. After ErrNotSynced the subscriber is called once more is
	// known.
	get() (*volume.Object, error)
	// denied returns why what get returns can't be kept current, or nil.
	denied() error
	// refresh asks for the present state, unless a watch brings the changes.
	refresh()
	// stopIfUnreadSince may stop what runs for an object that nothing has read since t.
	stopIfUnreadSince(t time.Time)
	// prioritize puts the object's waiting request first: a publish of pod waits for it.
	prioritize(pod types.UID)
	// status returns what is known, for people and metrics.
	status() ObjectStatus
	// held returns the object's place in the cache; always the same.
	held() *holding
	// close stops what runs for the object. Every read fails with err from then on.
	close(err error)
}

// newStore returns the store of a change detection.
func newStore(opts Options, c *cache) (store, error) {
	switch opts.ChangeDetection {
	case Watch, "":
		return newWatchStore(opts, c), nil
	case Cache:
		return newCacheStore(opts, c), nil
	case Get:
		return newGetStore(opts, c), nil
	}
	return nil, fmt.Errorf("manager options: ChangeDetection %q is none of %s, %s and %s", opts.ChangeDetection, Watch, Cache, Get)
}

// base is what every store has.
type base struct {
	sources     map[volume.Kind]*source
	credentials Credentials
	openings    *openings
	cache       *cache
	failures    *failureLog
	observer    Observer
	// reopens paces the ends of silent watches.
	reopens pace
	// logger is for client-go.
	logger  klog.Logger
	changed func(volume.Account, volume.Ref)
	// running counts the goroutines of objects.
	running sync.WaitGroup
}

// newBase returns the base of a store. failing is the log's message for a failed request.
func newBase(opts Options, c *cache, failing string) *base {
	logger := klog.Background()
	credentials := opts.Credentials
	if credentials == nil {
		credentials = ownCredentials{}
	}
	observer := opts.Observer
	if observer == nil {
		observer = noObserver{}
	}
	return &base{
		observer:    observer,
		sources:     newSources(opts.Client),
		credentials: credentials,
		openings:    newOpenings(opts.RefusalsPass),
		cache:       c,
		failures:    &failureLog{logger: logger, message: failing, outages: map[cause]*outage{}},
		logger:      clientlog.Quiet(logger),
		changed:     func(volume.Account, volume.Ref) {},
	}
}

// context returns the context of requests of an account.
func (b *base) context(account volume.Account) context.Context {
	return b.credentials.As(klog.NewContext(context.Background(), b.logger), account)
}

// lacksCredential returns an error if the account has no credential that could be sent.
func (b *base) lacksCredential(account volume.Account) error {
	if err := b.credentials.Ready(account); err != nil {
		return fmt.Errorf("%w: %w", errNoCredential, err)
	}
	return nil
}

func (b *base) renewed(account volume.Account) { b.openings.clearBackoff(account) }

func (b *base) subscribe(fn func(volume.Account, volume.Ref)) { b.changed = fn }

// newKnown returns the state of k, which is unknown, or nil for a kind without a source. pod
// is the first one that references it.
func (b *base) newKnown(k key, pod types.UID) *known {
	src := b.sources[k.ref.Kind]
	if src == nil {
		return nil
	}
	changed := b.changed
	known := &known{
		key: k, since: time.Now(), source: src, failures: b.failures, openings: b.openings,
		holding:   b.cache.newHolding(),
		candidate: candidate{Ref: k.ref, account: k.account, pod: pod},
		changed:   func() { changed(k.account, k.ref) },
	}
	known.candidate.shares = known.shares
	return known
}
