package csi

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

// Publisher does the work of the Node service. *publisher.Publisher implements it.
type Publisher interface {
	Publish(ctx context.Context, request binding.Request) error
	Unpublish(ctx context.Context, volumeID, target string) error
	Stats(ctx context.Context, volumeID, target string) (publisher.Usage, error)
}

// nodeServer is the CSI Node service.
type nodeServer struct {
	csi.UnimplementedNodeServer
	nodeName  string
	publisher Publisher
}

// NewNodeServer returns the CSI Node service, without a socket. It is safe for concurrent use if publisher is.
func NewNodeServer(nodeName string, publisher Publisher) csi.NodeServer {
	return &nodeServer{nodeName: nodeName, publisher: publisher}
}

// NodePublishVolume makes a volume visible at its target path.
func (s *nodeServer) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	request, err := publishRequest(req)
	if err != nil {
		return nil, err
	}
	if err := s.publisher.Publish(ctx, request); err != nil {
		return nil, asStatus(err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// publishRequest checks the form of a request and extracts what a publish needs. It does not check the attributes. If the CSIDriver object
// has lost podInfoOnMount or tokenRequests, it passes that on as an error in the request, because a mounted volume must not fail for that.
func publishRequest(req *csi.NodePublishVolumeRequest) (binding.Request, error) {
	none := binding.Request{}
	if err := checkIDAndPath(req.GetVolumeId(), "target_path", req.GetTargetPath()); err != nil {
		return none, err
	}
	if req.GetVolumeCapability() == nil {
		return none, malformed("volume_capability: Required value")
	}
	if req.GetVolumeCapability().GetMount() == nil {
		return none, malformed("volume_capability.mount: Required value: block volumes are not supported")
	}
	fsGroup, err := parseGroup(req.GetVolumeCapability().GetMount().GetVolumeMountGroup())
	if err != nil {
		return none, err
	}
	pod, podErr := volume.PodFromContext(req.GetVolumeContext())
	token, tokenErr := volume.TokenFromRequest(req.GetSecrets(), req.GetVolumeContext())
	return binding.Request{
		VolumeID:   req.GetVolumeId(),
		Target:     req.GetTargetPath(),
		Pod:        pod,
		PodErr:     podErr,
		Token:      token,
		TokenErr:   tokenErr,
		Attributes: volume.Attributes(req.GetVolumeContext()),
		ReadOnly:   req.GetReadonly(),
		FSGroup:    fsGroup,
	}, nil
}

// NodeUnpublishVolume unmounts a volume and removes its target path.
func (s *nodeServer) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := checkIDAndPath(req.GetVolumeId(), "target_path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := s.publisher.Unpublish(ctx, req.GetVolumeId(), req.GetTargetPath()); err != nil {
		return nil, asStatus(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats returns a volume's use of memory.
func (s *nodeServer) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := checkIDAndPath(req.GetVolumeId(), "volume_path", req.GetVolumePath()); err != nil {
		return nil, err
	}
	u, err := s.publisher.Stats(ctx, req.GetVolumeId(), req.GetVolumePath())
	if err != nil {
		return nil, asStatus(err)
	}
	return &csi.NodeGetVolumeStatsResponse{
		Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: u.Capacity, Available: u.Available, Used: u.Used},
			{Unit: csi.VolumeUsage_INODES, Total: u.Inodes, Available: u.InodesFree, Used: u.InodesUsed},
		},
	}, nil
}

// NodeGetCapabilities returns what the service supports beyond the required calls.
func (s *nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, capability := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: capability}},
		})
	}
	return response, nil
}

// NodeGetInfo returns the node's name, under which the kubelet registers the driver.
func (s *nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: s.nodeName}, nil
}

// volumeID is the form of volume IDs that are safe as a file name and as the source of a mount. The kubelet's own IDs are csi- and 64
// hexadecimal digits.
var volumeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func checkIDAndPath(id, pathField, path string) error {
	switch {
	case id == "":
		return malformed("volume_id: Required value")
	case !volumeID.MatchString(id):
		return malformed("volume_id: Invalid value: a string of %d bytes: must match %s", len(id), volumeID)
	case path == "":
		return malformed("%s: Required value", pathField)
	}
	return nil
}

// parseGroup parses volume_mount_group, in which the kubelet passes a pod's fsGroup.
func parseGroup(group string) (*int64, error) {
	if group == "" {
		return nil, nil //nolint:nilnil // no group is a valid answer
	}
	const most = 1<<31 - 1 // as the API server validates fsGroup
	gid, err := strconv.ParseInt(group, 10, 64)
	if err != nil || gid < 0 || gid > most {
		return nil, malformed("volume_capability.mount.volume_mount_group: Invalid value: a string of %d bytes: must be a decimal group id from 0 to %d", len(group), most)
	}
	return &gid, nil
}

func malformed(format string, args ...any) error {
	return status.Error(codes.InvalidArgument, fmt.Sprintf(format, args...))
}
