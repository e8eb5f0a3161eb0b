package main

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// seen is a state of an object, and when it was learnt of, in nanoseconds of Unix time.
type seen struct {
	State string `json:"state"`
	At    int64  `json:"at"`
}

// knowledge is the last state seen of each object, by name. mu guards it.
type knowledge struct {
	mu   sync.Mutex
	last map[string]seen
}

func newKnowledge() *knowledge { return &knowledge{last: map[string]seen{}} }

func (k *knowledge) see(name, state string) {
	at := time.Now().UnixNano()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last[name].State != state {
		k.last[name] = seen{State: state, At: at}
	}
}

func (k *knowledge) states() map[string]seen {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make(map[string]seen, len(k.last))
	for name, s := range k.last {
		out[name] = s
	}
	return out
}

// follower follows objects.
type follower struct {
	client kubernetes.Interface
	options
	known *knowledge
}

func (f *follower) selectObject(name string, o *metav1.ListOptions) {
	o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
}

// store is the store of client-go with a look at what goes in.
type store struct {
	cache.Store
	follower *follower
}

func (s store) Add(obj any) error    { s.see(obj); return s.Store.Add(obj) }
func (s store) Update(obj any) error { s.see(obj); return s.Store.Update(obj) }

func (s store) Replace(all []any, version string) error {
	for _, obj := range all {
		s.see(obj)
	}
	return s.Store.Replace(all, version)
}

func (s store) see(obj any) {
	if cm, ok := obj.(*corev1.ConfigMap); ok {
		s.follower.known.see(cm.Name, cm.Data[s.follower.key])
	}
}

// reflect keeps an object in a store of its own until ctx ends.
func (f *follower) reflect(ctx context.Context, name string) {
	client := f.client.CoreV1().ConfigMaps(f.namespace)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			f.selectObject(name, &o)
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			f.selectObject(name, &o)
			return client.Watch(ctx, o)
		},
	}
	kept := store{cache.NewStore(cache.MetaNamespaceKeyFunc), f}
	cache.NewReflector(cache.ToListWatcherWithWatchListSemantics(lw, f.client), &corev1.ConfigMap{}, kept, 0).RunWithContext(ctx)
}
