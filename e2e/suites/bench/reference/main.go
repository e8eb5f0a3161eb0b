// Command reference is what a benchmark holds the plugin against, as a process of its own: bare client-go reflectors
// of ConfigMaps, one for each, and nothing else; or those of refvol. It serves what it knows, and its profiles, over
// HTTP on a unix socket.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// valueKey is the key whose value tells the states of an object apart.
const valueKey = "value"

// object is the i-th ConfigMap of the benchmarks.
func object(i int) volume.Ref {
	return volume.Ref{Kind: volume.ConfigMap, Namespace: "bench", Name: fmt.Sprint("object-", i)}
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("reference", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	socket := flags.String("listen", "", "unix socket to serve on")
	opening := flags.Int("opening", 0, "how many watches and lists to open at once; 0: any number")
	count := flags.Int("count", 0, "how many to follow")
	own := flags.Bool("own", false, "follow them with refvol's own reflectors")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.ContentType = -1, runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if *opening > 0 {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{next, make(chan struct{}, *opening)} })
	}
	known := &knowledge{last: map[string]seen{}}
	start := follow
	if *own {
		start = followOwn
	}
	if err := start(ctx, config, known, *count); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/states", known)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(listener)
}

func follow(ctx context.Context, config *rest.Config, known *knowledge, count int) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for i := range count {
		ref := object(i)
		lw := cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", ref.Namespace, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, ref.Name).String()
		})
		kept := store{cache.NewStore(cache.MetaNamespaceKeyFunc), known}
		go cache.NewReflector(cache.ToListWatcherWithWatchListSemantics(lw, client), &corev1.ConfigMap{}, kept, 0).RunWithContext(ctx)
	}
	return nil
}

// seen is a state of an object, and when it was learnt of, in nanoseconds of Unix time.
type seen struct {
	State string
	At    int64
}

// knowledge is the last state seen of each object, by name. mu guards it.
type knowledge struct {
	mu   sync.Mutex
	last map[string]seen
}

func (k *knowledge) note(name, state string) {
	at := time.Now().UnixNano()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last[name].State != state {
		k.last[name] = seen{state, at}
	}
}

func (k *knowledge) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = json.NewEncoder(w).Encode(k.last) // to a client that has gone
}

type store struct {
	cache.Store
	known *knowledge
}

func (s store) Add(obj any) error    { return errors.Join(s.see(obj), s.Store.Add(obj)) }
func (s store) Update(obj any) error { return errors.Join(s.see(obj), s.Store.Update(obj)) }

func (s store) Replace(all []any, version string) error {
	return errors.Join(s.see(all...), s.Store.Replace(all, version))
}

func (s store) see(all ...any) error {
	for _, obj := range all {
		cm, ok := obj.(*corev1.ConfigMap)
		if !ok {
			return fmt.Errorf("%T: want a ConfigMap", obj)
		}
		s.known.note(cm.Name, cm.Data[valueKey])
	}
	return nil
}

// bounded is a transport on which few requests at a time wait for the headers of their answer.
type bounded struct {
	next  http.RoundTripper
	slots chan struct{}
}

// RoundTrip returns when the headers have arrived; the events of a watch come after that.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case b.slots <- struct{}{}:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	defer func() { <-b.slots }()
	return b.next.RoundTrip(r)
}

// followOwn follows the ConfigMaps with refvol's own reflectors, for one pod that nothing else is known of.
func followOwn(ctx context.Context, config *rest.Config, known *knowledge, count int) error {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	r := requests.New()
	httpClient.Transport = r.Wrap(httpClient.Transport, true)
	client, err := apiclient.New(config, httpClient)
	if err != nil {
		return err
	}
	// Nothing reads the objects again, so that only a long interval keeps their watches open.
	m, err := manager.New(manager.Options{Client: client, Requests: r, ResyncInterval: 24 * time.Hour})
	if err != nil {
		return err
	}
	pod := volume.Pod{Namespace: "bench", Name: "own", UID: "own"}
	m.Subscribe(func(_ volume.ServiceAccount, ref volume.Ref) {
		if obj, err := m.GetObject(pod, ref); err == nil {
			known.note(ref.Name, string(obj.Data[valueKey]))
		}
	})
	for i := range count {
		m.RegisterPod(pod, fmt.Sprint("volume-", i), []volume.Ref{object(i)})
	}
	go func() { _ = m.Run(ctx) }() // it fails only if it runs twice
	return nil
}
