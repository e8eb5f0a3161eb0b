package simulation

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/apitest"
	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/csi"
	"github.com/refvol/refvol/pkg/events"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/metrics"
	"github.com/refvol/refvol/pkg/node"
	"github.com/refvol/refvol/pkg/requests"
)

// process is one process of the plugin. After its death nothing that it does reaches the mounts or the API server.
type process struct {
	w    *world
	node *node.Node
	// calls is its CSI Node service.
	calls    csipb.NodeServer
	requests *requests.Requests
	recorder *events.Recorder
	// wire ends when the process can't send anything any more.
	wire    context.Context
	cutWire context.CancelFunc
	dead    atomic.Bool
	// died is closed at its death, or when it is to stop.
	died chan struct{}
	once sync.Once
	old  []string // directories that only this process sees
}

func (w *world) newProcess() (*process, error) {
	ctx := klog.NewContext(context.Background(), w.logger)
	proc := &process{w: w, died: make(chan struct{}), requests: requests.New()}
	proc.wire, proc.cutWire = context.WithCancel(context.Background())
	client, err := proc.Own()
	must(err)
	proc.recorder = events.New(ctx, func(namespace string) events.Events { return client.Events(namespace) }, driver, nodeName)
	proc.node, err = node.New(node.Settings{
		Driver: driver, NodeName: nodeName, KubeletDir: w.kubeletDir, Identity: w.mode.identity, ChangeDetection: w.mode.detection,
		CrossNamespace: w.mode.identity != authz.IdentityNode, ResyncInterval: resync, PublishWait: publishWait,
		MaxVolumeSize: mebibyte, MaxTotalSize: 64 * mebibyte, MaxCachedSize: 64 * mebibyte,
	}, node.System{
		Client: client, Clients: proc, Requests: proc.requests, Mounts: mountsOf(proc), AttributePrefix: "user.refvol.", Opens: w.opens,
		NewWriter: proc.newWriter, Events: proc.recorder, Metrics: metrics.New(apiversion.Info{}),
	})
	must(err)
	proc.calls = csi.NewNodeServer(nodeName, proc.node.Volumes)
	if err := proc.node.Start(ctx); err != nil {
		proc.release()
		return nil, err
	}
	w.Add(history.Event{Kind: history.Started})
	go w.drainOpens(proc.died)
	return proc, nil
}

// stop ends the process, as SIGTERM does.
func (proc *process) stop() {
	must(proc.node.Stop())
	proc.release()
}

func (proc *process) release() {
	proc.recorder.Shutdown()
	proc.cutWire()
	proc.dead.Store(true)
	proc.w.opens.Forget()
	for _, dir := range proc.old {
		must(os.RemoveAll(dir))
	}
}

// hook is called between the steps of the process. It kills the process if it is time.
func (proc *process) hook(place string, hasDisk bool) error {
	if proc.dead.Load() {
		return errDead
	}
	if proc.w.killNow(place) {
		proc.kill(place, hasDisk)
		return errDead
	}
	return nil
}

// kill ends everything that the process does. The next process finds the mounts as they are at this moment.
func (proc *process) kill(place string, hasDisk bool) {
	proc.once.Do(func() {
		proc.w.Met("killed at: " + place)
		proc.w.Add(history.Event{Kind: history.Killed, Text: place})
		proc.dead.Store(true)
		if !hasDisk {
			proc.w.mounts.disk.Lock()
			defer proc.w.mounts.disk.Unlock()
		}
		proc.old = proc.w.mounts.crash()
		proc.cutWire()
		close(proc.died)
	})
}

// terminate makes the process stop in good order.
func (proc *process) terminate() {
	proc.once.Do(func() {
		proc.w.Met("terminated")
		proc.w.Add(history.Event{Kind: history.Killed, Text: "SIGTERM"})
		close(proc.died)
	})
}

// stopTime is how long the last requests of a process may keep their slots.
const stopTime = 1100 * time.Millisecond

// supervise starts a process, and another one whenever it ends, until the end of the run.
func (w *world) supervise() {
	for {
		proc, err := w.newProcess()
		if err != nil {
			w.Met("a start that failed")
			after(time.Second)
			continue
		}
		w.process.Store(proc)
		select {
		case <-proc.died:
		case <-w.end:
			proc.once.Do(func() { close(proc.died) })
		}
		w.process.Store(nil)
		proc.stop()
		select {
		case <-w.end:
			return
		case <-time.After(stopTime + time.Duration(w.roll("restart", 2000))*time.Millisecond):
		}
		w.checkStopped(proc)
	}
}

// Own is as in node.Clients, and so are the other methods.
func (proc *process) Own() (*apiclient.Client, error) { return proc.client(nil, "") }

func (proc *process) WithTokens(tokens *authz.Tokens) (*apiclient.Client, error) {
	return proc.client(tokens, "")
}

func (proc *process) AsNode(name string) (*apiclient.Client, error) { return proc.client(nil, name) }

// client returns a client as newClient of cmd/refvol-plugin makes it, over the simulation's wire.
func (proc *process) client(tokens *authz.Tokens, node string) (*apiclient.Client, error) {
	config := &rest.Config{Host: "http://api.test", QPS: -1}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	var transport http.RoundTripper = &wire{proc}
	if proc.w.mode.overWire {
		config.Host = proc.w.server.http.URL
		transport = proc.connection()
	}
	if tokens != nil {
		transport = tokens.Wrap(transport)
	}
	return apiclient.New(config, &http.Client{Transport: proc.requests.Wrap(transport, node == "")})
}

// connection returns a transport over HTTP/2 in memory, as newHTTPClient of cmd/refvol-plugin makes it. Its connections end with the process.
func (proc *process) connection() http.RoundTripper {
	base := utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: requests.OneAtATime(func(ctx context.Context, _, _ string) (net.Conn, error) {
			if proc.wire.Err() != nil {
				return nil, errDead
			}
			conn, err := proc.w.server.listener.DialContext(ctx)
			if err == nil {
				proc.w.Met("a handshake")
				context.AfterFunc(proc.wire, func() { conn.Close() })
			}
			return conn, err
		}),
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: requests.AnswerTimeout,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 45 * time.Second, MaxReceiveBufferPerStream: manager.StreamBuffer},
	})
	context.AfterFunc(proc.wire, base.CloseIdleConnections)
	return base
}

// wire is what a process sends its requests with, if there is no HTTP/2 between.
type wire struct{ proc *process }

// RoundTrip sends a request, whose answer ends with the process.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	if w.proc.dead.Load() {
		return nil, errDead
	}
	ctx, cancel := context.WithCancel(req.Context())
	stop := context.AfterFunc(w.proc.wire, cancel)
	resp, err := w.proc.w.server.RoundTrip(req.WithContext(ctx))
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	resp.Body = apitest.Body{ReadCloser: resp.Body, End: func() { stop(); cancel() }}
	return resp, nil
}
