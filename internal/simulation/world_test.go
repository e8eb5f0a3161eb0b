package simulation

import (
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/fakenode"
	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	namespace      = "shop"
	otherNamespace = "platform"
	nodeName       = "node-1"
	driver         = "csi.refvol.dev"
	resync         = time.Minute
	publishWait    = 100 * time.Second
	mebibyte       = 1 << 20
)

var (
	errDead = errors.New("this process was killed")
	errNode = errors.New("injected fault of the node")
)

// dice decides by a hash of the seed, a key, and how often the key was rolled. So other decisions don't change the next one of a key. It is
// safe for concurrent use.
type dice struct {
	seed uint64
	mu   sync.Mutex
	// rolled counts the rolls of each key.
	rolled map[string]uint64
}

func (d *dice) roll(key string, n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rolled[key]++
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, d.seed, key, d.rolled[key])
	x := h.Sum64() // FNV mixes the last bytes badly
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return int(x % uint64(n))
}

func (d *dice) oneIn(key string, n int) bool { return d.roll(key, n) == 0 }

// world is one run. Its fields down to end are constant, and mu guards those below it.
type world struct {
	*testing.T
	*dice
	*history.History
	mode       mode
	server     *apiServer
	mounts     *mounts
	opens      *fakenode.Opens
	kubeletDir string
	logger     klog.Logger
	logs       *leak.Log
	objects    map[string]volume.Ref
	volumes    []*simVolume
	kubelets   sync.WaitGroup
	end        chan struct{}
	// stalled is the file before whose next Ignore the process stalls.
	stalled atomic.Value

	// process is the running one, or nil.
	process  atomic.Pointer[process]
	isEnding atomic.Bool
	// isCalm means that no pod starts or ends.
	isCalm atomic.Bool

	mu sync.Mutex
	// killAt and killIn say when the process is killed: at the hook of this number, counted down, of a place.
	killAt string
	killIn int
}

type mode struct {
	identity  string
	detection manager.ChangeDetection
	// overWire means that requests go over HTTP/2 and not straight to the API server.
	overWire bool
}

func modeOf(seed uint64) mode {
	identities := []string{authz.IdentityPod, authz.IdentityNode, authz.IdentityPlugin, authz.IdentityPod, authz.IdentityPlugin}
	detections := []manager.ChangeDetection{manager.Watch, manager.Watch, manager.Watch, manager.Watch, manager.Watch, manager.Cache, manager.Get}
	return mode{identities[seed%5], detections[seed%7], seed%4 == 3}
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		T: t, dice: &dice{seed: seed, rolled: map[string]uint64{}}, History: history.New(), mode: modeOf(seed), kubeletDir: t.TempDir(), logs: &leak.Log{},
		end: make(chan struct{}),
	}
	w.mounts, w.opens, w.server = newMounts(w), fakenode.NewOpens(), newAPIServer(w)
	w.opens.OnIgnore = w.beforeIgnore
	w.logger = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w.logs), textlogger.Verbosity(2)))
	other := otherNamespace
	if w.mode.identity == authz.IdentityNode { // a node may read objects of the pod's own namespace only
		other = namespace
	}
	w.objects = map[string]volume.Ref{}
	for _, name := range []string{"c1", "c2", "c3", pair[0], canaryName} {
		w.objects[name] = volume.Ref{Kind: volume.ConfigMap, Namespace: namespace, Name: name}
	}
	for _, name := range []string{"s1", pair[1]} {
		w.objects[name] = volume.Ref{Kind: volume.Secret, Namespace: namespace, Name: name}
	}
	for _, name := range []string{"x1", "x2"} {
		w.objects[name] = volume.Ref{Kind: volume.Secret, Namespace: other, Name: name}
	}
	w.volumes = newVolumes(w)
	return w
}

// after waits on the bubble's clock.
func after(d time.Duration) { <-time.After(d) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}
