package sanity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// wrapper is a CSI driver that csi-sanity can talk to: a controller of its own for
// volumes that show one ConfigMap, and the plugin for everything else. What it doesn't
// have to change it passes on as it came, in both directions: it doesn't know the
// messages, and a method that the plugin lacks gets the plugin's own answer.
//
// One goroutine serves, from startWrapper to close.
type wrapper struct {
	plugin     *grpc.ClientConn
	server     *grpc.Server
	served     chan error
	attributes map[string]string
}

// startWrapper serves at the socket until close. A volume that it makes belongs to a
// pod in the namespace and shows the ConfigMap.
func startWrapper(socket, pluginSocket, namespace, configMap string) (*wrapper, error) {
	plugin, err := grpc.NewClient("unix://"+pluginSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the plugin: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for csi-sanity: %w", err), plugin.Close())
	}
	w := &wrapper{
		plugin: plugin,
		served: make(chan error, 1),
		attributes: map[string]string{
			"configMap":                              configMap,
			"csi.storage.k8s.io/pod.name":            "sanity",
			"csi.storage.k8s.io/pod.namespace":       namespace,
			"csi.storage.k8s.io/pod.uid":             podUID,
			"csi.storage.k8s.io/serviceAccount.name": "default",
			"csi.storage.k8s.io/ephemeral":           "true",
		},
	}
	w.server = grpc.NewServer(grpc.UnknownServiceHandler(w.pass))
	csi.RegisterControllerServer(w.server, &controller{})
	go func() { w.served <- w.server.Serve(listener) }()
	return w, nil
}

func (w *wrapper) close() error {
	w.server.Stop()
	return errors.Join(<-w.served, w.plugin.Close())
}

// pass hands a call to the plugin and its answer back. An empty message keeps the
// fields that it doesn't know, which is all of them.
func (w *wrapper) pass(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	request, response := &emptypb.Empty{}, &emptypb.Empty{}
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	var err error
	switch method {
	case csi.Node_NodePublishVolume_FullMethodName:
		err = edit(request, w.asKubelet)
	case csi.Node_NodeUnpublishVolume_FullMethodName:
		err = edit(request, func(r *csi.NodeUnpublishVolumeRequest) { r.TargetPath = asTarget(r.GetTargetPath()) })
	case csi.Node_NodeGetVolumeStats_FullMethodName:
		err = edit(request, func(r *csi.NodeGetVolumeStatsRequest) { r.VolumePath = asTarget(r.GetVolumePath()) })
	}
	if err != nil {
		return err
	}
	if err := w.plugin.Invoke(stream.Context(), method, request, response); err != nil {
		return err // the plugin's own status
	}
	if method == csi.Identity_GetPluginCapabilities_FullMethodName {
		err = edit(response, addController)
	}
	if err != nil {
		return err
	}
	return stream.SendMsg(response)
}

// asKubelet adds what a kubelet puts into each publish of a read-only inline volume,
// also where csi-sanity leaves something else out on purpose: that alone is to be
// wrong.
func (w *wrapper) asKubelet(request *csi.NodePublishVolumeRequest) {
	request.Readonly = true
	request.TargetPath = asTarget(request.GetTargetPath())
	request.VolumeContext = maps.Clone(w.attributes)
}

// asTarget gives csi-sanity's target the name that a kubelet's have. What csi-sanity made up
// is passed on.
func asTarget(path string) string {
	if filepath.Base(path) != "target" {
		return path
	}
	return filepath.Join(filepath.Dir(path), "mount")
}

// addController makes csi-sanity run the cases that need CreateVolume.
func addController(response *csi.GetPluginCapabilitiesResponse) {
	response.Capabilities = append(response.Capabilities, &csi.PluginCapability{
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}},
	})
}

// edit changes the message that raw carries.
func edit[M any, P interface {
	*M
	proto.Message
}](raw *emptypb.Empty, change func(P),
) error {
	data, err := proto.Marshal(raw)
	if err != nil {
		return err
	}
	message := P(new(M))
	if err := proto.Unmarshal(data, message); err != nil {
		return err
	}
	change(message)
	if data, err = proto.Marshal(message); err != nil {
		return err
	}
	return proto.Unmarshal(data, raw)
}

// controller makes volumes for which nothing has to be done, and can do nothing else.
type controller struct {
	csi.UnimplementedControllerServer
}

// CreateVolume returns a volume named after the request.
func (*controller) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: req.GetName()}}, nil
}

// DeleteVolume has nothing to remove.
func (*controller) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerGetCapabilities returns the two calls above.
func (*controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
			Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		}},
	}}}, nil
}
