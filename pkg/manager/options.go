package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/volume"
)

// ChangeDetection says how a Manager learns about changes.
type ChangeDetection string

// The change detections. They are those of the kubelet.
const (
	// Watch keeps a watch of each object open. Changes arrive at once.
	Watch ChangeDetection = "Watch"
	// Cache keeps an object for the duration in the node's annotation node.alpha.kubernetes.io/ttl. A Refresh after that requests it again.
	// The API server may answer from its cache.
	Cache ChangeDetection = "Cache"
	// Get requests the present state at each Refresh.
	Get ChangeDetection = "Get"
)

// Requests says why requests wait. *requests.Requests implements it.
type Requests interface {
	// Err returns why the requests of an account wait, and since when. err is nil if they don't wait.
	Err(account volume.ServiceAccount) (since time.Time, err error)
	// OnNewCredential lets the requests of an account continue, because it has another credential.
	OnNewCredential(account volume.ServiceAccount)
}

// Observer receives the restarts of watches, for metrics. *metrics.Metrics implements it. It must return at once and must be safe for
// concurrent use.
type Observer interface {
	// Rewatched is called when a watch of an object is opened again after the last one ended.
	Rewatched(kind volume.Kind)
}

type noObserver struct{}

func (noObserver) Rewatched(volume.Kind) {}

// Nodes gets Node objects. A client-go client implements it.
type Nodes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
}

// Options are the options of a Manager.
type Options struct {
	// Client sends the requests. Its outermost transport must be that of Requests, which limits and paces them, so the client must not have
	// a rate limit of its own. Both are required.
	Client   *apiclient.Client
	Requests Requests
	// Accounts makes the manager read objects with the rights of the pods' service accounts. Only the pods of one account share what is
	// read. The client finds the account of a request by requests.MetaOf. If Accounts is false, objects are read with the client's own
	// rights.
	Accounts bool
	// Nodes gets the Node NodeName. Cache requires it; the others don't use it.
	Nodes Nodes
	// ChangeDetection says how changes are detected. "" means Watch.
	ChangeDetection ChangeDetection
	// NodeName is the name of the Node object that says how long Cache keeps an object. It is requested at most once a minute. Cache
	// requires it; the others don't use it.
	NodeName string
	// RefusalsPass means that a 403 may pass although no right changes, as with a node's rights: the authorizer of an API server that
	// starts or lags doesn't know a pod yet, and refuses all its objects. A 403 then counts after a minute instead of five seconds.
	RefusalsPass bool
	// Observer receives the restarts of watches. It may be nil.
	Observer Observer
	// LogLimit limits what is logged about each pod. If it is nil, there is no limit.
	LogLimit *loglimit.Limiter
	// ResyncInterval is how often a volume reads its objects that no watch follows. It is required and must be more than zero. The watch of an object
	// stops when nothing has read the object for five times as long, but at least for a minute, and no mounted volume references it. The next
	// read starts it again.
	ResyncInterval time.Duration
	// MaxCachedSize limits the memory of objects, in bytes; 0 means no limit. An object that several accounts read counts for each. One
	// pod's objects may use an eighth of it. Beyond the limit, GetObject fails with a FullError for volumes that are not mounted.
	MaxCachedSize int64
}

func (o Options) validate() error {
	if o.Client == nil || o.Requests == nil {
		return errors.New("manager options: Client and Requests are required")
	}
	if o.ResyncInterval <= 0 {
		return fmt.Errorf("manager options: ResyncInterval must be more than zero, not %v", o.ResyncInterval)
	}
	if o.MaxCachedSize < 0 {
		return fmt.Errorf("manager options: MaxCachedSize must not be negative, it is %d", o.MaxCachedSize)
	}
	switch o.ChangeDetection {
	case Watch, Cache, Get, "":
	default:
		return fmt.Errorf("manager options: ChangeDetection %q is none of %s, %s and %s", o.ChangeDetection, Watch, Cache, Get)
	}
	if o.ChangeDetection == Cache && (o.NodeName == "" || o.Nodes == nil) {
		return errors.New("manager options: Nodes and NodeName are required by the change detection Cache")
	}
	return nil
}
