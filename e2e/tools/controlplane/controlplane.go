package controlplane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/process"
)

// startTimeout is far beyond the three seconds that a start takes, for a machine
// that also compiles.
const startTimeout = 5 * time.Minute

// Options says how to start a control plane.
type Options struct {
	// Binaries are what Build returned. Required.
	Binaries Binaries
}

// ControlPlane is one running etcd with one API server. Its methods are safe for
// concurrent use; mu guards the two processes.
type ControlPlane struct {
	opts Options
	// dir keeps data, keys and logs, and a unix socket. Stop removes it.
	dir string
	// attached is the kubeconfig of a control plane that another process has started.
	attached string
	port     *reservedPort
	token    string
	config   *rest.Config
	client   *kubernetes.Clientset

	// etcdAddress is where etcd answers of a control plane that this process is attached to.
	etcdAddress string
	etcdClient  *http.Client

	mu   sync.Mutex
	etcd *process.Process
	// etcdServer is that of ServeEtcd.
	etcdServer *httptest.Server
	apiServer  *process.Process
}

// Start returns a control plane that is ready to serve. ctx bounds the start only;
// if it fails nothing is left running, and the error has the last log lines of what
// failed.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	c, err := prepare(o)
	if err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// prepare makes what both processes need: the directory, the keys and the port.
func prepare(o Options) (*ControlPlane, error) {
	if o.Binaries.Etcd == "" || o.Binaries.APIServer == "" {
		return nil, errors.New("start the control plane: no binaries, see Build")
	}
	c := &ControlPlane{opts: o, token: rand.Text()}
	c.etcdClient = c.newEtcdClient()
	dir, err := os.MkdirTemp("", "refvol-cp-")
	if err != nil {
		return nil, fmt.Errorf("create the control plane's directory: %w", err)
	}
	c.dir = dir
	if err := c.writeCredentials(); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	port, err := reservePort()
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	c.port = port
	return c, nil
}

func (c *ControlPlane) start(ctx context.Context) error {
	if err := c.startEtcd(); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	config, err := c.adminConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of the control plane: %w", err)
	}
	c.config, c.client = config, client
	return c.WriteKubeconfig(c.Kubeconfig(), c.token)
}

// Client returns a client with all rights and no limit on its request rate.
func (c *ControlPlane) Client() *kubernetes.Clientset { return c.client }

// Config returns a copy of the configuration that Client uses.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig returns the path of a kubeconfig file with all rights.
func (c *ControlPlane) Kubeconfig() string {
	if c.attached != "" {
		return c.attached
	}
	return c.path("admin.kubeconfig")
}

// Port returns the API server's port, on 127.0.0.1.
func (c *ControlPlane) Port() uint16 { return uint16(c.port.number) }

// APIServerPID returns the process id of the API server, 0 while it is stopped.
func (c *ControlPlane) APIServerPID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.apiServer == nil {
		return 0
	}
	return c.apiServer.PID()
}

// Stop ends both processes, waits for them and removes what Start made. They are
// killed: nothing of theirs is needed afterwards, and an API server that is asked
// to end waits many seconds for open watches. Calling it again does nothing.
func (c *ControlPlane) Stop() error {
	if c.attached != "" {
		closeIdleConnections(c.client)
		return nil
	}
	err := c.StopAPIServer()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.etcdServer != nil {
		c.etcdServer.Close()
		c.etcdServer = nil
	}
	if c.etcd != nil {
		err = errors.Join(err, c.etcd.Kill())
		c.etcd = nil
	}
	if c.port != nil {
		err = errors.Join(err, c.port.Close())
		c.port = nil
	}
	if c.client != nil {
		closeIdleConnections(c.client)
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// closeIdleConnections ends a client's connections to a server that is gone,
// so that the caller can check for leaked goroutines and descriptors.
func closeIdleConnections(client *kubernetes.Clientset) {
	if rc, ok := client.CoreV1().RESTClient().(*rest.RESTClient); ok {
		utilnet.CloseIdleConnectionsFor(rc.Client.Transport)
	}
}

func (c *ControlPlane) path(name string) string { return filepath.Join(c.dir, name) }

// errAttached is why nothing starts or stops the server of another process.
var errAttached = errors.New("this control plane was started elsewhere")

// Attach returns the control plane that a kubeconfig file with all rights leads to, for a
// test that runs on another machine than the control plane. Its API server can't be started
// or stopped, Stop leaves it running, and what is asked of the processes, the port and the
// directory has no answer.
//
// etcd is the address of its etcd, see ServeEtcd.
func Attach(kubeconfig, etcd string) (*ControlPlane, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err != nil {
		return nil, fmt.Errorf("attach to a control plane: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the control plane: %w", err)
	}
	c := &ControlPlane{attached: kubeconfig, etcdAddress: etcd, config: config, client: client}
	c.etcdClient = c.newEtcdClient()
	return c, nil
}
