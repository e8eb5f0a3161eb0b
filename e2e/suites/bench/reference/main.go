// Command reference is what a benchmark holds the plugin against, as a process of its own:
// bare client-go reflectors of ConfigMaps, one for each, and nothing else. It serves what it knows, and its
// profiles, over HTTP on a unix socket.
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
	kubeconfig, namespace, prefix, key, listen, kind string
	count                                            int
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("reference", flag.ContinueOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server")
	flags.StringVar(&o.namespace, "namespace", "", "where the ConfigMaps are")
	flags.StringVar(&o.prefix, "prefix", "", "what their names begin with, before a number")
	flags.StringVar(&o.key, "key", "", "the key whose value tells their states apart")
	flags.StringVar(&o.listen, "listen", "", "unix socket to serve on")
	flags.StringVar(&o.kind, "kind", "reflector", "reflector, or bounded: reflectors that begin few at a time")
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
	switch o.kind {
	case "reflector":
	case "bounded":
		config.Wrap(newBounded)
	default:
		return fmt.Errorf("kind %q: want reflector or bounded", o.kind)
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
	for i := range o.count {
		go f.reflect(ctx, fmt.Sprint(o.prefix, i))
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
