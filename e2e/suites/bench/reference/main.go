// Command reference is what a benchmark holds the plugin against, as a process of its own:
// bare client-go reflectors or watches of ConfigMaps, one for each, and nothing else, or the
// kubelet's own manager of ConfigMaps. It serves what it knows, and its profiles, over HTTP on a unix socket.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

// options say what to follow.
type options struct {
	kubeconfig, namespace, prefix, key, listen, kind, node string
	count                                                  int
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("reference", flag.ContinueOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server")
	flags.StringVar(&o.namespace, "namespace", "", "where the ConfigMaps are")
	flags.StringVar(&o.prefix, "prefix", "", "what their names begin with, before a number")
	flags.StringVar(&o.key, "key", "", "the key whose value tells their states apart")
	flags.StringVar(&o.listen, "listen", "", "unix socket to serve on")
	flags.StringVar(&o.kind, "kind", "reflector", "reflector, bounded (reflectors that begin few at a time), watch, or kubelet (what -node's kubelet watches)")
	flags.StringVar(&o.node, "node", "", "name of the node whose user is impersonated; empty: nobody is")
	flags.IntVar(&o.count, "count", 0, "how many to follow")
	err := flags.Parse(args)
	return o, err
}

func run(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if o.kind == "bounded" {
		config.Wrap(newBounded)
	}
	if o.node != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + o.node, Groups: []string{"system:nodes"}}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", o.listen)
	if err != nil {
		return err
	}
	known := newKnowledge()
	go serve(listener, known)
	f := follower{client: client, options: o, known: known}
	if o.kind == "kubelet" {
		if err := f.asKubelet(ctx); err != nil {
			return err
		}
	}
	for i := range o.count {
		name := fmt.Sprint(o.prefix, i)
		switch o.kind {
		case "reflector", "bounded":
			go f.reflect(ctx, name)
		case "watch":
			go f.watch(ctx, name)
		default:
			return fmt.Errorf("kind %q: want reflector, bounded or watch", o.kind)
		}
	}
	<-ctx.Done()
	return nil
}

// serve answers until the process ends.
func serve(listener net.Listener, known *knowledge) {
	mux := http.NewServeMux()
	mux.HandleFunc("/states", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(known.states()) // to a client that has gone
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintln(os.Stderr, server.Serve(listener))
}
