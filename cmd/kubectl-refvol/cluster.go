package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// requestTimeout is the default of --request-timeout. It limits each request to the API server, except a port-forward.
	requestTimeout = 30 * time.Second
	// atOnce limits the plugins that are asked at the same time. Each of them needs a connection to the API server, and one from there to
	// the node.
	atOnce = 50
)

// clusterOptions are the flags that select the plugins of a cluster.
type clusterOptions struct {
	// flags are kubectl's own flags.
	flags     *genericclioptions.ConfigFlags
	namespace string
	selector  string
	driver    string
	port      uint16
	timeout   time.Duration
}

// newConfigFlags returns kubectl's flags. Requests have a timeout by default. timeout is the value of the flag --request-timeout.
func newConfigFlags() (flags *genericclioptions.ConfigFlags, timeout *requestTimeoutFlag) {
	flags, timeout = genericclioptions.NewConfigFlags(true), &requestTimeoutFlag{requestTimeout}
	// With a timeout set here, client-go would treat the flags as a configuration, and not look for the one of the pod.
	flags.Timeout = nil
	return flags.WithWrapConfigFn(func(config *rest.Config) *rest.Config {
		config.Timeout = timeout.Duration
		config.UserAgent = ""
		return rest.AddUserAgent(config, "kubectl-refvol/"+version.Get().GitVersion)
	}), timeout
}

// requestTimeoutFlag is the value of --request-timeout in kubectl's form: a duration, or seconds. 0 means no limit.
type requestTimeoutFlag struct{ time.Duration }

// Set parses a value.
func (f *requestTimeoutFlag) Set(text string) (err error) {
	f.Duration, err = clientcmd.ParseTimeout(text)
	return err
}

// Type returns the word that the help shows.
func (*requestTimeoutFlag) Type() string { return "string" }

func newClusterOptions(flags *genericclioptions.ConfigFlags) *clusterOptions {
	return &clusterOptions{
		flags: flags, namespace: "refvol-system", selector: "app.kubernetes.io/name=refvol-plugin", driver: driverName,
		port: 9811, timeout: 10 * time.Second,
	}
}

// driverName is the default name of the CSI driver.
const driverName = "csi.refvol.dev"

// addFlags adds the flags that say where the plugins are.
func (o *clusterOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.namespace, "plugin-namespace", o.namespace, "The namespace of the plugin's pods.")
	fs.StringVar(&o.selector, "plugin-selector", o.selector, "The labels of the plugin's pods.")
	fs.StringVar(&o.driver, "driver-name", o.driver, "The name of the CSI driver, as in the CSIDriver object.")
}

// addStatusFlags adds the flags that say how a plugin is asked.
func (o *clusterOptions) addStatusFlags(fs *pflag.FlagSet) {
	fs.Uint16Var(&o.port, "status-port", o.port, "The port of the plugin's --status-address.")
	fs.DurationVar(&o.timeout, "plugin-timeout", o.timeout, "The time that one plugin may take to answer.")
}

func (o *clusterOptions) validate() error {
	switch {
	case o.namespace == "":
		return errors.New("--plugin-namespace must not be empty")
	case o.driver == "":
		return errors.New("--driver-name must not be empty")
	case o.port == 0:
		return errors.New("--status-port must not be 0")
	case o.timeout <= 0:
		return fmt.Errorf("--plugin-timeout: %s is not positive", o.timeout)
	}
	if _, err := labels.Parse(o.selector); err != nil {
		return fmt.Errorf("--plugin-selector: %w", err)
	}
	return nil
}

// cluster sends the requests of the commands, with the caller's rights. It is safe for concurrent use.
type cluster struct {
	opts *clusterOptions
	// timeout limits the time for one plugin's answer.
	timeout  time.Duration
	client   kubernetes.Interface
	metadata metadata.Interface
	config   *rest.Config
}

// connect returns the cluster that the flags select. It sends no request.
func (o *clusterOptions) connect() (*cluster, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	config, err := o.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("configure the client of the API server: %w", err)
	}
	config = rest.CopyConfig(config)
	config.QPS = -1
	// They are for the authors of objects. A dry run of a namespace's pods would log many.
	config.WarningHandler = rest.NoWarnings{}
	// As JSON, the pods of a large cluster are a gigabyte.
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	timeout := o.timeout
	if config.Timeout > 0 && config.Timeout != requestTimeout {
		timeout = min(timeout, config.Timeout)
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the connections to the API server: %w", err)
	}
	client, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	objects, err := metadata.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	return &cluster{opts: o, timeout: timeout, client: client, metadata: objects, config: config}, nil
}

// fleet returns how the plugins are asked: of all nodes, or only of the named ones.
func (c *cluster) fleet(nodes ...string) *fleet.Options {
	o := &fleet.Options{
		Driver: c.opts.driver, CSINodes: c.csiNodes, Plugins: c.plugins,
		Fetch: c.fetch, Using: c.using, Pod: c.pod, NodeReady: c.isNodeReady,
		AtOnce: atOnce, Timeout: c.timeout,
	}
	if len(nodes) > 0 {
		o.CSINodes = onNodes(nodes, c.csiNodes, func(n *storagev1.CSINode) string { return n.Name })
		o.Plugins = onNodes(nodes, c.plugins, func(pod *corev1.Pod) string { return pod.Spec.NodeName })
		o.Using = onNodes(nodes, c.using, func(pod *fleet.Pod) string { return pod.Node })
	}
	return o
}

// onNodes returns a list function that keeps only what is on some nodes.
func onNodes[T any](nodes []string, list func(context.Context) ([]T, error), node func(*T) string) func(context.Context) ([]T, error) {
	return func(ctx context.Context) ([]T, error) {
		all, err := list(ctx)
		return slices.DeleteFunc(all, func(one T) bool { return !slices.Contains(nodes, node(&one)) }), err
	}
}

// errNoPlugin says that no pod was found that belongs to the plugin.
var errNoPlugin = errors.New("--plugin-namespace and --plugin-selector say where the plugin is")

func (c *cluster) csiNodes(ctx context.Context) (all []storagev1.CSINode, err error) {
	err = fleet.Each(ctx, c.client.StorageV1().CSINodes().List, metav1.ListOptions{}, func(n *storagev1.CSINode) { all = append(all, *n) })
	if err != nil {
		return nil, fmt.Errorf("list the CSINodes: %w", err)
	}
	return all, nil
}

// plugins lists the plugin's pods. If there are none, that is an error, because a flag is probably wrong.
func (c *cluster) plugins(ctx context.Context) (all []corev1.Pod, err error) {
	opts := metav1.ListOptions{LabelSelector: c.opts.selector}
	err = fleet.Each(ctx, c.client.CoreV1().Pods(c.opts.namespace).List, opts, func(pod *corev1.Pod) { all = append(all, *pod) })
	if err != nil {
		return nil, fmt.Errorf("list the plugin's pods: %w", err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no pod of namespace %s has the labels %q: %w", c.opts.namespace, c.opts.selector, errNoPlugin)
	}
	return all, nil
}

func (c *cluster) using(ctx context.Context) ([]fleet.Pod, error) {
	return fleet.Using(ctx, c.client.CoreV1().Pods("").List, c.opts.driver)
}

// pod gets a pod that used the driver. It returns nil if the pod doesn't use it any more.
func (c *cluster) pod(ctx context.Context, namespace, name string) (*fleet.Pod, error) {
	pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err == nil {
		if use, ok := fleet.UsesDriver(pod, c.opts.driver); ok {
			return &use, nil
		}
	}
	return nil, nil //nolint:nilnil // the answer is that there is none
}

func (c *cluster) isNodeReady(ctx context.Context, name string) (bool, error) {
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}), nil
}

func (c *cluster) fetch(ctx context.Context, pod string, objects []status.ObjectKey) (*status.Report, error) {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(c.opts.port)))
	report, err := status.Fetch(ctx, &podTransport{c.config, c.client.CoreV1().RESTClient(), c.opts.namespace, pod}, address, objects...)
	if apierrors.IsForbidden(err) {
		// The API server does not always name the right create.
		err = fmt.Errorf("%w: this takes get and create of pods/portforward in namespace %s", err, c.opts.namespace)
	}
	return report, err
}

// version returns an object's version, or nil if the object doesn't exist. It requests the object's metadata only, without values.
func (c *cluster) version(ctx context.Context, object fleet.Object) (objectVersion, error) {
	found, err := c.objects(object).Get(ctx, object.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		return objectVersion{}, nil
	case err != nil:
		return objectVersion{}, fmt.Errorf("get the metadata of %s: %w", object, err)
	}
	now := &status.Version{UID: string(found.UID), ResourceVersion: found.ResourceVersion}
	revision := volume.Revision(found.Annotations[volume.RevisionAnnotation])
	if !revision.IsValid() {
		revision = ""
	}
	return objectVersion{now, revision}, nil
}
